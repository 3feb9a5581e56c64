"""Products of adapters on the CPU, by the native library (adapters.cpp), or without it by torch."""

import torch
from torch import Tensor

from .. import adapters
from ..arguments import AdapterPlace
from . import build


def packs_adapters(dtype: torch.dtype) -> bool:
    """True if the CPU's native library multiplies adapters of this dtype."""
    return build.op("add_adapters", build.DTYPES.get(dtype)) is not None


def add_adapters(out: Tensor, x: Tensor, tiles: Tensor, place: AdapterPlace) -> None:
    """Implement `ops.add_adapters` with the native library, or without it with torch."""
    run = build.op("add_adapters", build.DTYPES.get(x.dtype))
    if run is None:
        adapters.add_in_torch(out, x, tiles, place)
        return
    x = x.contiguous()
    run(
        x=x, out=out, tiles=tiles, outputs=place.outputs, num_tiles=len(tiles), first_part=place.first,
        num_parts=len(place.outputs), num_inputs=x.shape[1], num_outputs=out.shape[1],
    )  # fmt: skip
