"""Schemes of linears, and inputs that are rounded."""

from typing import Any

import pytest
import torch
from torch import Tensor

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.formats.checkpoint_format import LinearTensors
from splitfuse.engine.formats.quantization.compressed_tensors import CompressedTensors, parse

TOKEN = {"num_bits": 8, "strategy": "token", "dynamic": True}
CHANNEL = {"num_bits": 8, "strategy": "channel"}


def config(*groups: dict[str, Any], **fields: Any) -> CompressedTensors:
    return parse({"config_groups": dict(enumerate(groups)), **fields})


def linear(name: str, tensors: dict[str, Tensor]) -> LinearTensors:
    named = {f"{name}.{part}": tensor for part, tensor in tensors.items()}
    return LinearTensors(name, named.__contains__, named.__getitem__)


INT8 = {"weight": torch.ones(4, 8, dtype=torch.int8), "weight_scale": torch.ones(4, 1)}
FLOAT8 = {"weight": torch.ones(4, 8).to(torch.float8_e4m3fn), "weight_scale": torch.ones(1)}


def test_each_linear_has_the_scheme_that_names_it_closest() -> None:
    checkpoint_format = config(
        {"targets": ["Linear"], "weights": CHANNEL},
        {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "type": "float"}},
        {"targets": ["Attention"], "weights": None},
        ignore=["lm_head"],
    )
    for name, tensors, dtype in (("a.up_proj", INT8, torch.int8), ("a.down_proj", FLOAT8, torch.float8_e4m3fn)):
        weight = checkpoint_format.weight(linear(name, tensors), (4, 8))
        assert weight is not None
        assert weight.values.dtype == dtype
    assert checkpoint_format.weight(linear("lm_head", {"weight": torch.ones(4, 8)}), (4, 8)) is None
    with pytest.raises(ConfigError, match="lm_head is quantized, but not by quantization_config"):
        checkpoint_format.weight(linear("lm_head", INT8), (4, 8))
    with pytest.raises(ConfigError, match=r"a\.down_proj\.weight is int8 \[4, 8\], but .* need float8_e4m3fn \[4, 8\]"):
        checkpoint_format.weight(linear("a.down_proj", INT8), (4, 8))
    assert checkpoint_format.name == "compressed-tensors, int8 and FP8"


@pytest.mark.parametrize(
    ("weights", "inputs", "rounds"),
    [
        (CHANNEL, TOKEN, True),
        (CHANNEL, None, False),
        (CHANNEL, {**TOKEN, "dynamic": False}, False),
        (CHANNEL, {**TOKEN, "symmetric": False}, False),
        (CHANNEL, {**TOKEN, "type": "float"}, False),
        ({"num_bits": 8, "group_size": 4, "strategy": "group"}, TOKEN, False),
    ],
)
def test_inputs_are_rounded_per_token_or_not_at_all(weights: Any, inputs: Any, rounds: bool) -> None:
    made = config({"targets": ["Linear"], "weights": weights, "input_activations": inputs})
    scales = torch.ones(4, 2 if "group_size" in weights else 1)
    weight = made.weight(linear("a", {**INT8, "weight_scale": scales}), (4, 8))
    assert weight is not None
    assert weight.rounds_inputs == rounds
