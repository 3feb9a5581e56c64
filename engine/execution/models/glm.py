"""GLM-4 and GLM-Edge (Zhipu AI 2024): half of a head rotates, by neighbours; one matrix for gate and up."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from .interleaved_rope import InterleavedRope
from .layers import GATED_ACTIVATIONS, MLP, activation

_DEFAULTS = {"head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7}


class GlmForCausalLM(InterleavedRope):
    """Llama with biases on q, k and v."""

    partial_rotary = True
    o_bias: ClassVar[bool | None] = False

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({**_DEFAULTS, **raw})

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        mlp, rows = f"{self._layer_name(index)}.mlp", self._parallel.gate_up_rows(inner)
        return MLP(
            self._linear([(f"{mlp}.gate_up_proj", 2 * inner)], hidden, bias=False, rows=rows, is_robust=True),
            activation(self.config.hidden_act, GATED_ACTIVATIONS),
            self._row_parallel_linear(f"{mlp}.down_proj", hidden, inner, bias=False, is_robust=True),
        )
