"""Falcon-H1 (TII 2025): attention and a state space side by side in every layer, with a multiplier on each matrix."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_number
from .decoder import Decoder, WeightNames
from .forward_inputs import Inputs
from .hybrid import check_values, scaled
from .layers import Attention
from .mamba2_mixer import Mamba2Mixer, MambaDecoder, MambaShape

_MULTIPLIERS = (
    *("embedding_multiplier", "lm_head_multiplier", "attention_in_multiplier", "attention_out_multiplier"),
    *("key_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"),
)


@dataclass(frozen=True, slots=True)
class AttentionBesideMamba:
    """Sum of attention and a state space of one input."""

    attention: Attention
    mamba: Mamba2Mixer

    def __call__(self, x: Tensor, inputs: Inputs, views: tuple[ops.CacheView, ops.StateView]) -> Tensor:
        cache, state = views
        return self.mamba(x, inputs, state) + self.attention(x, inputs, cache)


class FalconH1ForCausalLM(MambaDecoder):
    """MambaDecoder whose multipliers become part of the weights, as in GGUF files."""

    names = WeightNames(norm="final_layernorm", mlp_norm="pre_ff_layernorm", mlp="feed_forward")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        check_values(raw, attention_bias=False, mlp_bias=False, projectors_bias=False, mamba_proj_bias=False)
        check_values(raw, mamba_use_mlp=True, hidden_act=("silu", "swish"))
        for name, count in (("mlp_multipliers", 2), ("ssm_multipliers", 5)):
            if not isinstance(raw[name], list) or len(raw[name]) != count:
                raise ConfigError(f"{name} must be {count} numbers")
        kinds = ["hybrid"] * raw["num_hidden_layers"]
        multipliers = {name: positive_number(raw, name, 1.0) for name in _MULTIPLIERS}
        return super().normalize_config({**raw, **multipliers, "layer_kinds": kinds})

    def _load_attention(self, index: int) -> Any:
        return AttentionBesideMamba(Decoder._load_attention(self, index), self._load_recurrent(index))

    def _embed(self, inputs: Inputs) -> Tensor:
        return super()._embed(inputs).mul_(self.config.hf_config["embedding_multiplier"])

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden).float().mul_(self.config.hf_config["lm_head_multiplier"])

    def _take_weight(self, name: str, *shape: int) -> Tensor | ops.QuantizedWeight:
        weight, factors = super()._take_weight(name, *shape), self._row_factors(name)
        return weight if factors is None else scaled(weight, factors.to(self._device))

    def _row_factors(self, name: str) -> Tensor | None:
        """Return the factors of this matrix, one for all rows or one for each; None for those without."""
        fields, part = self.config.hf_config, name.split(".")[-2]
        around, key = fields["attention_in_multiplier"], fields["key_multiplier"]
        gate, down = fields["mlp_multipliers"]
        factors = {
            "q_proj": around, "k_proj": around * key, "v_proj": around, "o_proj": fields["attention_out_multiplier"],
            "gate_proj": gate, "down_proj": down, "out_proj": fields["ssm_out_multiplier"],
        }  # fmt: skip
        if part == "in_proj":
            shape = MambaShape.from_fields(fields)
            inputs = shape.num_groups * shape.state_size
            sizes = torch.tensor([shape.inner_size, shape.inner_size, inputs, inputs, shape.num_heads])
            factors_of_parts: Tensor = torch.tensor(fields["ssm_multipliers"]) * fields["ssm_in_multiplier"]
            return factors_of_parts.repeat_interleave(sizes)
        return torch.tensor([factors[part]]) if part in factors else None
