"""DeepseekSparseDecoder: base of families with the mixtures of DeepSeek-V3 (DeepSeek-AI 2024)."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ...formats.json_file import positive_int
from .hybrid import check_values
from .moe import SparseDecoder


class DeepseekSparseDecoder(SparseDecoder):
    """SparseDecoder that scores by sigmoid, in groups, after plain first layers, beside experts for every token."""

    routes_by_sigmoid = True
    routing_bias = "gate.e_score_correction_bias"

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {"first_k_dense_replace": 0, "norm_topk_prob": True, **raw}
        if kinds := fields.get("mlp_layer_types"):
            first = next((layer for layer, kind in enumerate(kinds) if kind == "sparse"), len(kinds))
            fields["first_k_dense_replace"] = first
            num_sparse = positive_int(fields, "num_hidden_layers") - first
            check_values(fields, mlp_layer_types=(["dense"] * first + ["sparse"] * num_sparse,))
        first = int(fields["first_k_dense_replace"] or 0)
        num_experts = fields.get("n_routed_experts") or fields.get("num_local_experts")
        return super().normalize_config(
            {**fields, "num_local_experts": num_experts, "mlp_only_layers": [*range(first)]}
        )

    def _load_shared_expert(self, index: int) -> Callable[[Tensor], Tensor] | None:
        if not self.config.hf_config.get("n_shared_experts"):
            return None
        size = positive_int(self.config.hf_config, "n_shared_experts") * positive_int(
            self.config.hf_config, "moe_intermediate_size"
        )
        return self._load_gated_mlp(f"{self._layer_name(index)}.{self.sparse_block}.shared_experts", size)

    def _is_ignored(self, name: str) -> bool:
        """True of the layers after the last, too: they predict more than one token, which is not built."""
        layer = re.match(rf"{re.escape(self._prefix)}layers\.(\d+)\.", name)
        return super()._is_ignored(name) or (layer is not None and int(layer[1]) >= self.config.num_layers)
