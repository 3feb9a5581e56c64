"""Granite 4 (IBM 2025): state spaces, attention without positions in a few layers, a shared expert, often a mixture."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ....kernels import ops
from ...formats.json_file import positive_int
from .granite import GraniteMoeForCausalLM
from .hybrid import check_values, with_layer_kinds
from .layers import MLP
from .mamba2_mixer import MambaDecoder

_KINDS = ("linear_attention", "full_attention")


class GraniteMoeHybridForCausalLM(MambaDecoder, GraniteMoeForCausalLM):
    """Granite mixture with state spaces; without experts, the shared one is a layer's MLP."""

    partial_rotary = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = with_layer_kinds(raw, _KINDS, lambda layer: _KINDS[0])
        if not fields["num_local_experts"]:
            plain = [*range(fields["num_hidden_layers"])]
            fields |= {"num_local_experts": 1, "num_experts_per_tok": 1, "mlp_only_layers": plain}
        check_values(fields, position_embedding_type=(None, "nope", "rope"), normalization_function="rmsnorm")
        if fields.get("position_embedding_type") != "rope":
            fields |= {"rope_parameters": None, "rope_scaling": None, "partial_rotary_factor": 0.0}
        return super().normalize_config(fields)

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        if index in self.config.hf_config["experts"].layers:
            return super()._load_mlp(index)
        return self._load_shared_expert(index)

    def _load_shared_expert(self, index: int) -> MLP:
        inner, hidden = positive_int(self.config.hf_config, "shared_intermediate_size"), self.config.hidden_size
        name = f"{self._layer_name(index)}.shared_mlp"
        parts = [(f"{name}.input_linear", 2 * inner)]
        if self._source.has(f"{name}.gate_proj.weight"):  # a GGUF file has halves
            parts = [(f"{name}.gate_proj", inner), (f"{name}.up_proj", inner)]
        down = self._linear([(f"{name}.output_linear", hidden)], inner, bias=False, is_robust=True)
        return MLP(self._linear(parts, hidden, bias=False, is_robust=True), ops.silu_mul, down)
