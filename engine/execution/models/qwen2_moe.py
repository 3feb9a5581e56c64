"""Qwen2-MoE (Qwen Team 2024): a Qwen2 with mixtures of experts and a shared expert that processes every token."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from ....kernels import ops
from .checkpoint import positive_int
from .layers import MLP
from .moe import SparseDecoder, SparseMLP

_DEFAULTS = {
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "intermediate_size": 5632,
    "norm_topk_prob": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


@dataclass(frozen=True, slots=True)
class SharedExpertMLP:
    """MLP with a shared expert: sparse(x) + sigmoid(gate · x) · shared(x)."""

    sparse: SparseMLP
    shared: MLP
    gate: Any  # matrix of one output, packed by `ops.pack_linear`

    def __call__(self, x: Tensor) -> Tensor:
        # A softmax over (gate, 0) is its sigmoid. torch's sigmoid has other bits in the last few elements of a batch.
        gates = functional.pad(ops.linear(x, self.gate), (0, 1)).softmax(dim=-1)[:, :1]
        return self.sparse(x).addcmul_(gates, self.shared(x))


class Qwen2MoeForCausalLM(SparseDecoder):
    """SparseDecoder; a window, if switched on, applies to every other one of the first layers."""

    o_bias: ClassVar[bool | None] = False

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw, "attention_bias": raw.get("qkv_bias", True)}
        if not fields.get("use_sliding_window"):
            fields |= {"sliding_window": None, "layer_types": None}
        elif not fields.get("layer_types"):
            first = int(fields["max_window_layers"])
            windows = [index < first and index % 2 == 0 for index in range(fields["num_hidden_layers"])]
            fields["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
        return super().normalize_config(fields)

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        mlp, name = super()._load_mlp(index), f"{self._layer_name(index)}.mlp"
        if not isinstance(mlp, SparseMLP):
            return mlp
        size = positive_int(self.config.hf_config, "shared_expert_intermediate_size")
        gate = self._linear([(f"{name}.shared_expert_gate", 1)], self.config.hidden_size, bias=False)
        return SharedExpertMLP(mlp, self._load_gated_mlp(f"{name}.shared_expert", size), gate)
