"""AdapterTable: one adapter's low-rank matrices for all linears of a model, laid out for `ops.add_adapters`.

    y = W x + scale · B (A x),  A [r, in], B [out, r]                                           (Hu et al. 2021, LoRA)

A table names its matrices by address, so adapters of any number and rank share a batch, and none has to be copied.
"""

from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from . import large_pages
from .arguments import TILE, AdapterPart, AdapterPlace

_RANKS, _OUTPUTS = 16, 32  # of a panel of A and of B, as in adapters.cpp
_STEP = 4  # bytes


class AdapterTable:
    """Entries [parts, 4] int64 on the device: addresses of A and B, rank, and the scale's bits; rank 0: no change.

    A step in flight reads the memory, so whoever has such a step keeps the table.
    """

    def __init__(self, parts: Mapping[int, AdapterPart], *, num_parts: int, device: torch.device, packs: bool) -> None:
        """`packs`: lay the matrices out for the native library."""
        self.parts = (
            {} if packs else {n: AdapterPart(p.a.to(device), p.b.to(device), p.scale) for n, p in parts.items()}
        )
        self._memory = [(part.a, part.b) for part in self.parts.values()]
        if packs:
            self._memory = _packed(parts)
        entries = torch.zeros(num_parts, 4, dtype=torch.int64)
        for (number, part), (a, b) in zip(parts.items(), self._memory, strict=True):
            scale = torch.tensor([part.scale], dtype=torch.float64).view(torch.int64)
            entries[number] = torch.tensor([a.data_ptr(), b.data_ptr(), len(part.a), int(scale)])
        self.entries = entries.to(device)
        _tables[self.address] = self

    @property
    def address(self) -> int:
        """Address of the entries, by which a tile names the adapter."""
        return self.entries.data_ptr()

    @property
    def num_bytes(self) -> int:
        """Memory of the matrices and of the entries."""
        tensors = [self.entries, *(tensor for pair in self._memory for tensor in pair)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @staticmethod
    def tiles(rows: Mapping[int, Sequence[int]]) -> list[list[int]]:
        """Return tiles [address, number of rows, rows…, padding], of rows by the address of their adapter."""
        tiles = []
        for address, own in rows.items():
            for start in range(0, len(own), TILE):
                part = own[start : start + TILE]
                tiles.append([address, len(part), *part, *[0] * (TILE - len(part))])
        return tiles

    def padding_tiles(self, num_tokens: int) -> list[list[int]]:
        """Return tiles without rows: as many as a step of these tokens has, unless it has more than 64 adapters."""
        return [[self.address, *[0] * (TILE + 1)]] * min(num_tokens, num_tokens // TILE + 64)


_tables: WeakValueDictionary[int, AdapterTable] = WeakValueDictionary()  # by address, for ops in torch


def add_in_torch(out: Tensor, x: Tensor, tiles: Tensor, place: AdapterPlace) -> None:
    """Implement `ops.add_adapters` with torch, in float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    for address, num_rows, *rows in tiles.tolist():
        own = torch.tensor(rows[:num_rows], device=x.device)
        inputs = x.index_select(0, own).to(wide)
        for number, (first, size) in enumerate(place.outputs.tolist(), place.first):
            if (part := _tables[address].parts.get(number)) is not None:
                change = F.linear(F.linear(inputs, part.a.to(wide)) * part.scale, part.b.to(wide))
                out[own, first : first + size] = (out[own, first : first + size].to(wide) + change).to(out.dtype)


def _packed(parts: Mapping[int, AdapterPart]) -> list[tuple[Tensor, Tensor]]:
    """Lay the matrices out one after the other, so that the hardware fetches ahead the matrix that is read next."""
    sizes = [(_num_panel_bytes(part.a, _RANKS), _num_panel_bytes(part.b, _OUTPUTS)) for part in parts.values()]
    rest, packed = torch.frombuffer(large_pages.region(max(sum(map(sum, sizes)), 1)), dtype=torch.uint8), []
    for part, (size_a, size_b) in zip(parts.values(), sizes, strict=True):
        a, b, rest = rest[:size_a], rest[size_a : size_a + size_b], rest[size_a + size_b :]
        _lay_panels(part.a, _RANKS, a)
        _lay_panels(part.b, _OUTPUTS, b)
        packed.append((a, b))
    return packed


def _num_panel_bytes(matrix: Tensor, lanes: int) -> int:
    return -(-len(matrix) // lanes) * lanes * -(-matrix.shape[1] * matrix.element_size() // _STEP) * _STEP


def _lay_panels(matrix: Tensor, lanes: int, to: Tensor) -> None:
    """Lay out a matrix [outputs, inputs] as [panels, steps, lanes]: a step is one input, or of bfloat16 a pair."""
    pack = _STEP // matrix.element_size()
    words = F.pad(matrix, (0, -matrix.shape[1] % pack, 0, -len(matrix) % lanes)).view(torch.int32)
    panels = words.view(-1, lanes, words.shape[1]).transpose(1, 2)
    to.view(torch.int32).view(panels.shape).copy_(panels)
