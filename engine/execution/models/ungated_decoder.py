"""UngatedDecoder: base of later families with an MLP of two matrices, up and down, instead of three with a gate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .decoder import Decoder, WeightNames
from .layers import ACTIVATIONS, MLP, Activation, LayerNorm, Norm, activation


class UngatedDecoder(Decoder):
    """Decoder with an MLP of up_proj and down_proj alone."""

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        hidden, inner, bias = self.config.hidden_size, self.config.intermediate_size, self.config.mlp_bias
        mlp, own = f"{self._layer_name(index)}.{self.names.mlp}", [self._parallel.share(self.config.intermediate_size)]
        return MLP(
            self._linear([(f"{mlp}.up_proj", inner)], hidden, bias=bias, rows=own, is_robust=True),
            self._activation(mlp),
            self._row_parallel_linear(f"{mlp}.down_proj", hidden, inner, bias=bias, is_robust=True),
        )

    def _activation(self, mlp: str) -> Activation:
        """Return the activation of the MLP with this name."""
        return activation(self.config.hidden_act, ACTIVATIONS)


class ArceeForCausalLM(UngatedDecoder):
    """Arcee's AFM (Arcee 2025): a Llama with an MLP of two matrices around relu(x)²."""


class NemotronForCausalLM(UngatedDecoder):
    """Nemotron-4 and Minitron (NVIDIA 2024): LayerNorm with its weight less 1, relu(x)², half of a head rotates.

    Llama without a gate whose norms subtract the mean.
    """

    partial_rotary = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({"partial_rotary_factor": raw["rope_percent"], **raw})

    def _load_norm(self, name: str) -> Norm:
        size = self.config.hidden_size
        weight = self._take(f"{name}.weight", size) + 1.0
        return LayerNorm(weight, self._take(f"{name}.bias", size), self.config.norm_eps)


_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_BETA = 0.5
_EPS = -1e-6


@dataclass(frozen=True, slots=True)
class XIELU:
    """Activation with two learned bends (Huang & Schlag 2024): a parabola above 0, a bent exponential below."""

    above: float  # alpha_p
    below: float  # alpha_n

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        negative = (wide.clamp(max=_EPS).expm1() - wide) * self.below
        return (torch.where(wide > 0, self.above * wide * wide, negative) + _BETA * wide).to(x.dtype)


class ApertusForCausalLM(UngatedDecoder):
    """Apertus (Swiss AI 2025): a Llama with norms of q and k and an MLP of two matrices around xIELU.

    Llama without a gate, with other names of its norms.
    """

    names = WeightNames(attention_norm="attention_layernorm", mlp_norm="feedforward_layernorm")
    qk_norm = True
    inexact = "xIELU runs in torch, whose expm1 has other bits in the last few elements of a batch"
    ignored = (*UngatedDecoder.ignored, "act_fn.beta", "act_fn.eps")  # constants of the activation

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config({"hidden_act": "xielu", "rms_norm_eps": 1e-5, **raw})
        has_rope = any(fields.get(name) for name in ("rope_parameters", "rope_scaling", "rope_theta"))
        return fields if has_rope else {**fields, "rope_parameters": _ROPE}

    def _activation(self, mlp: str) -> Activation:
        if self.config.hidden_act != "xielu":
            return super()._activation(mlp)
        above, below = (F.softplus(self._bend(mlp, name).float()) for name in ("alpha_p", "alpha_n"))
        if above.is_meta:
            return XIELU(1.0, 1.0)
        return XIELU(above.item(), _BETA + below.item())

    def _bend(self, mlp: str, name: str) -> Tensor:
        """Return a bend before its softplus: a tensor of the checkpoint, or a number of a GGUF file's metadata."""
        bends = self.config.hf_config.get(f"xielu_{name}")
        return torch.tensor(bends[int(mlp.split(".")[-2])]) if bends else self._take(f"{mlp}.act_fn.{name}", 1)
