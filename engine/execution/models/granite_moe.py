"""Granite 3 mixtures (IBM 2024): a Granite with experts in every layer, whose weights are a softmax of the chosen."""

from collections.abc import Iterator, Mapping
from typing import Any

from ....kernels import ops
from .granite import GraniteForCausalLM
from .moe import ExpertsConfig, SparseDecoder

_DEFAULTS = {"num_local_experts": 8, "num_experts_per_tok": 2}


class GraniteMoeForCausalLM(GraniteForCausalLM, SparseDecoder):
    """Granite whose checkpoints have one tensor for all experts of a layer."""

    sparse_block = "block_sparse_moe"
    router_name = "router.layer"

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw}
        size = fields["intermediate_size"]
        return super().normalize_config({**fields, "moe_intermediate_size": size, "norm_topk_prob": True})

    def _experts(self, block: str, config: ExpertsConfig) -> Iterator[ops.ExpertWeights]:
        if self._source.has(f"{block}.experts.0.gate_proj.weight"):  # a GGUF file has halves
            yield from super()._experts(block, config)
            return
        yield from self._experts_of_one_tensor(f"{block}.input_linear.weight", f"{block}.output_linear.weight", config)
