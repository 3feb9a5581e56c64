"""UngatedDecoder: base of later families with an MLP of two matrices, up and down, instead of three with a gate."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .decoder import Decoder
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
