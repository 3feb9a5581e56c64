# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Adapters: out += scale · B (A x) for tiles of 16 rows with one adapter (Hu et al. 2021; Chen et al. 2023, Punica).

Two kernels: A x in float32 for each tile and part, then B of it, added to the outputs. Matrices are found by the
addresses in the adapters' tables, so adapters of any number and rank are one launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...arguments import MAX_RANK, TILE, TILE_WIDTH, AdapterPlace

_TILE, _TILE_WIDTH, _ENTRY = tl.constexpr(TILE), tl.constexpr(TILE_WIDTH), tl.constexpr(4)
# Untuned on a GPU.
_BLOCK_R, _BLOCK_K, _BLOCK_N = 16, 128, 64


@triton.jit
def _shrink(
    x_ptr, tiles_ptr, hidden_ptr, first_part, x_stride, NUM_K: tl.constexpr, MAX_RANK: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write hidden [tiles, parts, 16, MAX_RANK] float32 = scale · A x."""
    tile, part, start = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BLOCK_R
    tile_ptr = tiles_ptr + tile * _TILE_WIDTH
    entry_ptr = tl.load(tile_ptr).to(tl.pointer_type(tl.int64)) + (first_part + part) * _ENTRY
    rank = tl.load(entry_ptr + 2)
    if start < rank:
        a_ptr = tl.load(entry_ptr).to(tl.pointer_type(x_ptr.dtype.element_ty))
        scale = tl.load(entry_ptr + 3).to(tl.float64, bitcast=True).to(tl.float32)
        places, ranks, steps = tl.arange(0, _TILE), start + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_K)
        has_row = places < tl.load(tile_ptr + 1)
        rows = tl.load(tile_ptr + 2 + places, mask=has_row, other=0)
        sums = tl.zeros((_TILE, BLOCK_R), tl.float32)
        for k in range(0, NUM_K, BLOCK_K):
            inside = k + steps < NUM_K
            x = tl.load(
                x_ptr + rows[:, None] * x_stride + (k + steps)[None, :],
                mask=has_row[:, None] & inside[None, :],
                other=0.0,
            )
            a = tl.load(
                a_ptr + ranks[None, :] * NUM_K + (k + steps)[:, None],
                mask=(ranks < rank)[None, :] & inside[:, None],
                other=0.0,
            )
            sums += tl.dot(x, a, input_precision="ieee")
        to = hidden_ptr + (((tile * tl.num_programs(1) + part) * _TILE) + places[:, None]).to(tl.int64) * MAX_RANK
        tl.store(to + ranks[None, :], sums * scale)


@triton.jit
def _expand(
    out_ptr, tiles_ptr, hidden_ptr, outputs_ptr, first_part, out_stride, MAX_RANK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[rows of the tile, outputs of the part] += B hidden."""
    tile, part, start = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BLOCK_N
    tile_ptr = tiles_ptr + tile * _TILE_WIDTH
    entry_ptr = tl.load(tile_ptr).to(tl.pointer_type(tl.int64)) + (first_part + part) * _ENTRY
    rank = tl.load(entry_ptr + 2)
    first_output, num_outputs = tl.load(outputs_ptr + part * 2), tl.load(outputs_ptr + part * 2 + 1)
    if (rank > 0) & (start < num_outputs):
        b_ptr = tl.load(entry_ptr + 1).to(tl.pointer_type(out_ptr.dtype.element_ty))
        places, columns = tl.arange(0, _TILE), start + tl.arange(0, BLOCK_N)
        has_row = places < tl.load(tile_ptr + 1)
        rows = tl.load(tile_ptr + 2 + places, mask=has_row, other=0)
        from_ptr = hidden_ptr + (((tile * tl.num_programs(1) + part) * _TILE) + places[:, None]).to(tl.int64) * MAX_RANK
        sums = tl.zeros((_TILE, BLOCK_N), tl.float32)
        for r in range(0, rank, BLOCK_R):
            ranks = r + tl.arange(0, BLOCK_R)
            hidden = tl.load(from_ptr + ranks[None, :], mask=has_row[:, None] & (ranks < rank)[None, :], other=0.0)
            b = tl.load(
                b_ptr + columns[None, :] * rank + ranks[:, None],
                mask=(columns < num_outputs)[None, :] & (ranks < rank)[:, None],
                other=0.0,
            )
            sums += tl.dot(hidden.to(b.dtype), b, input_precision="ieee")
        to = out_ptr + rows[:, None] * out_stride + first_output + columns[None, :]
        mask = has_row[:, None] & (columns < num_outputs)[None, :]
        tl.store(to, (tl.load(to, mask=mask, other=0.0).to(tl.float32) + sums).to(out_ptr.dtype.element_ty), mask=mask)


def add_adapters(out: Tensor, x: Tensor, tiles: Tensor, place: AdapterPlace) -> None:
    """Implement `ops.add_adapters`: out [T, N] += …, x [T, K], contiguous rows."""
    assert x.stride(1) == 1
    assert out.stride(1) == 1
    num_tiles, num_parts = len(tiles), len(place.outputs)
    if not num_tiles:
        return
    hidden = torch.empty(num_tiles * num_parts * TILE * MAX_RANK, dtype=torch.float32, device=x.device)
    _shrink[(num_tiles, num_parts, MAX_RANK // _BLOCK_R)](
        x, tiles, hidden, place.first, x.stride(0), NUM_K=x.shape[1], MAX_RANK=MAX_RANK, BLOCK_R=_BLOCK_R,
        BLOCK_K=_BLOCK_K if x.element_size() < 4 else _BLOCK_K // 2,
    )  # fmt: skip
    _expand[(num_tiles, num_parts, triton.cdiv(out.shape[1], _BLOCK_N))](
        out, tiles, hidden, place.outputs, place.first, out.stride(0), MAX_RANK=MAX_RANK, BLOCK_R=_BLOCK_R,
        BLOCK_N=_BLOCK_N,
    )  # fmt: skip
