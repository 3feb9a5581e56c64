"""bitsandbytes: the loss that a start prints is what rounding its numbers changes."""

import pytest
import torch
from quantized_checkpoints import NF4

from splitfuse.engine.formats.quantization.bitsandbytes import BitsAndBytes, _codebook

# FP4: bitsandbytes' own order of codes.
_FP4 = [0.0, 0.0625 / 12, 8 / 12, 12 / 12, 4 / 12, 6 / 12, 2 / 12, 3 / 12]
TABLES = {"nf4": NF4, "fp4": torch.tensor([*_FP4, *(-level for level in _FP4)])}


@pytest.mark.parametrize("kind", TABLES)
def test_the_printed_loss_is_that_of_its_table(kind: str) -> None:
    levels = TABLES[kind]
    blocks = torch.randn(40_000, 64, generator=torch.Generator().manual_seed(1))
    scales = blocks.abs().amax(dim=1, keepdim=True)
    codes = (blocks / scales)[..., None].sub(levels).abs().argmin(dim=-1)
    unit, codebook = _codebook(levels)
    change = (torch.tensor(codebook)[codes] / unit - levels[codes]) * scales
    loss = float(change.square().mean().sqrt() / blocks.square().mean().sqrt())
    assert BitsAndBytes(kind).name == f"bitsandbytes {kind.upper()}, numbers rounded to int8 (error {100 * loss:.2f} %)"


def test_int8_prints_no_loss() -> None:
    assert BitsAndBytes("int8").name == "bitsandbytes INT8"
