"""Plan: a forward pass as a list of native ops, recorded once and run by one call of the library (plan.cpp).

The ops and their arguments come from backend.py, so the result is equal to the bit. From step to step only numbers
of rows and addresses of the step's arrays change; buffers between the ops are kept.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..arguments import TILE_WIDTH, RaggedBatch, StateBatch, StepArrays
from . import build
from .recording import Buffer, Call, Recording, Value

# Placeholders for a step's numbers during recording: primes beyond any dimension, so that a field which is a multiple
# of one can be recognised.
_NUMBERS = {
    "num_tokens": 2**40 + 15,
    "num_logits": 2**40 + 27,
    "num_rows": 2**40 + 31,
    "num_decodes": 2**40 + 75,
    "max_blocks": 2**40 + 87,
    "num_tiles": 2**40 + 97,
}
_ARRAYS = (
    *("x", "out", "positions", "slot_mapping", "query_start_loc", "seq_lens", "block_tables", "logits_indices"),
    "adapter_tiles",
    *StateBatch._fields,
)
_OPS_OF_VALUES = ("select_rows", "add_scaled")
_LINE = 64  # bytes of a cache line
_MAX_SHORT_QUERY_LEN = 4

Forward = Callable[[Any, StepArrays], Any]


class Plan:
    """Recorded forward pass. For one thread."""

    def __init__(self, recording: Recording, out: Value, run: Callable[..., None]) -> None:
        self._run, self._width, self._dtype = run, out.shape[1], out.dtype
        places = _places(recording.calls, out.buffer)
        names = (*_NUMBERS, *_ARRAYS, *(f"memory{place}" for place in range(len(places.row_bytes))))
        self._row_bytes = places.row_bytes
        self._variables = np.zeros(len(names), dtype=np.int64)
        self._addresses = torch.from_numpy(self._variables)  # view of _variables for the library
        writer = _Writer({name: index for index, name in enumerate(names)}, places.of_buffer)
        for call in recording.calls:
            writer.add(call)
        self._operations = torch.tensor(writer.operations)
        self._without_adapters = self._operations[
            torch.tensor(["tiles" not in call.fields for call in recording.calls])
        ]
        self._patches = torch.tensor(writer.patches)
        self._arguments = torch.frombuffer(writer.arguments, dtype=torch.uint8)
        self._kept_tensors = writer.kept_tensors  # keeps tensors alive whose addresses are in the arguments
        self._num_products = writer.num_products
        self._memory, self._capacity = torch.empty(0), 0

    def run(self, x: Tensor, arrays: StepArrays) -> Tensor:
        """Run the forward pass: x [T, hidden] → [L, hidden]."""
        ragged, num_tokens, tiles = arrays.ragged, len(x), arrays.adapter_tiles
        self._reserve(max(num_tokens, len(arrays.logits_indices)))
        out = torch.empty(len(arrays.logits_indices), self._width, dtype=self._dtype)
        tensors = (
            x.contiguous(), out, arrays.positions, arrays.slot_mapping, ragged.query_start_loc, ragged.seq_lens,
            ragged.block_tables, arrays.logits_indices, arrays.positions if tiles is None else tiles,
            *(arrays.states or ()),
        )  # fmt: skip
        numbers = (
            num_tokens, len(out), len(ragged.seq_lens), num_short(ragged), ragged.block_tables.stride(0),
            0 if tiles is None else len(tiles),
        )  # fmt: skip
        variables = (*numbers, *(tensor.data_ptr() for tensor in tensors))
        self._variables[: len(variables)] = variables
        operations = self._without_adapters if tiles is None else self._operations
        self._run(
            operations=operations, patches=self._patches, variables=self._addresses, arguments=self._arguments,
            num_operations=len(operations), num_patches=len(self._patches),
            num_products=num_tokens * self._num_products,
        )  # fmt: skip
        return out

    def _reserve(self, num_rows: int) -> None:
        """Allocate all buffers for at least this many rows, rounded up to a power of two."""
        if num_rows <= self._capacity:
            return
        capacity = 1 << (num_rows - 1).bit_length()
        sizes = [capacity * row_bytes + -capacity * row_bytes % _LINE for row_bytes in self._row_bytes]
        self._memory = torch.empty(sum(sizes) + _LINE, dtype=torch.uint8)
        start = self._memory.data_ptr() + -self._memory.data_ptr() % _LINE
        self._variables[len(_NUMBERS) + len(_ARRAYS) :] = start + np.cumsum([0, *sizes])[:-1]
        self._capacity = capacity  # last: if there is no memory, the step after has the smaller buffers, not none


def record(forward: Forward, *, width: int, dtype: torch.dtype) -> Plan | str:
    """Implement `ops.record`."""
    library = build.library()
    if library is None:
        return "there is no native library"
    if dtype not in build.DTYPES:
        return f"there are no native ops for {str(dtype).removeprefix('torch.')}"
    recording = Recording(
        {(op, each): library[f"{op}_{name}"] for op in _OPS_OF_VALUES for each, name in build.DTYPES.items()}
    )
    try:
        out = forward(recording.value(_NUMBERS["num_tokens"], width, dtype=dtype, name="x"), _step_values(recording))
        return Plan(recording, out, library["run_plan"])
    except (AttributeError, KeyError, TypeError) as exc:
        return str(exc)


def num_short(ragged: RaggedBatch) -> int:
    """Count the first rows that run attention one query at a time; longer rows use tiles, which pay beyond four."""
    if ragged.max_query_len <= _MAX_SHORT_QUERY_LEN:
        return len(ragged.seq_lens)
    if ragged.num_decodes is not None:
        return ragged.num_decodes
    return int((ragged.query_start_loc.diff() == 1).int().cumprod(0).sum())


def _step_values(recording: Recording) -> StepArrays:
    def array(name: str, dtype: torch.dtype, *shape: int) -> Any:
        return recording.value(*shape, dtype=dtype, name=name)

    tokens, rows = _NUMBERS["num_tokens"], _NUMBERS["num_rows"]
    return StepArrays(
        positions=array("positions", torch.int64, tokens),
        slot_mapping=array("slot_mapping", torch.int64, tokens),
        ragged=RaggedBatch(
            query_start_loc=array("query_start_loc", torch.int32, rows + 1),
            seq_lens=array("seq_lens", torch.int32, rows),
            block_tables=array("block_tables", torch.int32, rows, _NUMBERS["max_blocks"]),
            num_decodes=_NUMBERS["num_decodes"],
            max_query_len=tokens,
            max_seq_len=tokens,
        ),
        logits_indices=array("logits_indices", torch.int64, _NUMBERS["num_logits"]),
        states=StateBatch(*(array(name, torch.int32, rows) for name in StateBatch._fields)),
        adapter_tiles=array("adapter_tiles", torch.int64, _NUMBERS["num_tiles"], TILE_WIDTH),
    )


class _Places(NamedTuple):
    """Places of buffers in memory. Buffers share a place if one is last used before the other is first used."""

    of_buffer: Mapping[Buffer, str]  # name of the variable that has the buffer's address
    row_bytes: Sequence[int]  # one number for each place


def _places(calls: Sequence[Call], out: Buffer) -> _Places:
    last_use = {buffer: index for index, call in enumerate(calls) for buffer in call.buffers()}
    of_buffer: dict[Buffer, str] = {out: "out"}
    row_bytes: list[int] = []
    free: dict[int, list[str]] = {}
    for index, call in enumerate(calls):
        buffers = call.buffers()
        for buffer in sorted(buffers - of_buffer.keys(), key=lambda each: each.row_bytes):
            of_buffer[buffer] = buffer.name or _take(free, buffer.row_bytes, row_bytes)
        for buffer in buffers:
            if last_use[buffer] == index and buffer.name is None and buffer is not out:
                free.setdefault(buffer.row_bytes, []).append(of_buffer[buffer])
    return _Places(of_buffer, row_bytes)


def _take(free: Mapping[int, list[str]], size: int, row_bytes: list[int]) -> str:
    if free.get(size):
        return free[size].pop()
    row_bytes.append(size)
    return f"memory{len(row_bytes) - 1}"


class _Writer:
    """Writer of calls in the format of run_plan."""

    def __init__(self, variables: Mapping[str, int], places: Mapping[Buffer, str]) -> None:
        self.operations: list[tuple[int, int]] = []
        self.patches: list[tuple[int, int, int, int]] = []
        self.arguments = bytearray()
        self.kept_tensors: list[Tensor] = []
        self.num_products = 0  # multiplications per token by the largest matrix
        self._variables, self._places = variables, places

    def add(self, call: Call) -> None:
        start = len(self.arguments)
        self.operations.append((call.op.address, start))
        fields = {**call.fields, "num_threads": 1}
        offsets = _offsets(kind for _, kind in call.op.fields)
        values = [self._number(fields[name], start + at) for (name, _), at in zip(call.op.fields, offsets, strict=True)]
        self.arguments += call.op.packer.pack(*values)
        self.arguments += bytes(-len(self.arguments) % _LINE)
        self.num_products = max(self.num_products, fields.get("num_outputs", 0) * fields.get("num_inputs", 0))

    def _number(self, field: Any, at: int) -> Any:
        """Return the number for the struct's field; 0 if each step sets the field."""
        if isinstance(field, Tensor):
            self.kept_tensors.append(field)
            return field.data_ptr()
        if isinstance(field, Value):
            self.patches.append((at, self._variables[self._places[field.buffer]], 1, field.byte_offset))
            return 0
        if isinstance(field, int) and field >= min(_NUMBERS.values()):
            name = next(name for name, number in _NUMBERS.items() if field % number == 0)
            self.patches.append((at, self._variables[name], field // _NUMBERS[name], 0))
            return 0
        return field or 0


def _offsets(kinds: Iterable[str]) -> list[int]:
    """Return the offsets at which a C compiler puts fields of these `struct` formats."""
    offsets, end = [], 0
    for kind in kinds:
        size = 4 if kind == "f" else 8
        offsets.append(end + -end % size)
        end = offsets[-1] + size
    return offsets
