"""ERNIE 4.5, dense and with mixtures of experts."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ...formats.json_file import positive_int
from .interleaved_rope import InterleavedRope
from .moe import SparseDecoder


class Ernie4_5ForCausalLM(InterleavedRope):
    """ERNIE 4.5, dense (Baidu 2025): a Llama that rotates neighbours, with one switch for all biases.

    Llama with `use_bias`.
    """


class Ernie4_5_MoeForCausalLM(Ernie4_5ForCausalLM, SparseDecoder):
    """ERNIE 4.5 mixtures (Baidu 2025): an ERNIE 4.5 with experts from a first to a last layer, and experts for all.

    SparseDecoder whose bias changes the choice of experts alone.
    """

    routing_bias = "moe_statics.e_score_correction_bias"

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**raw, "head_dim": raw["head_dim"] or raw["hidden_size"] // raw["num_attention_heads"]}
        layers, first, last = (fields[n] for n in ("num_hidden_layers", "moe_layer_start_index", "moe_layer_end_index"))
        last = layers - 1 if last == -1 else last
        plain = [layer for layer in range(layers) if not first <= layer <= last]
        return super().normalize_config({**fields, "mlp_only_layers": plain})

    def _load_shared_expert(self, index: int) -> Callable[[Tensor], Tensor] | None:
        if not self.config.hf_config["moe_num_shared_experts"]:
            return None
        count, size = (
            positive_int(self.config.hf_config, f"moe_{name}") for name in ("num_shared_experts", "intermediate_size")
        )
        return self._load_gated_mlp(f"{self._layer_name(index)}.mlp.shared_experts", count * size)

    def _take(self, name: str, *shape: int) -> Tensor:
        # The bias is stored with one row.
        if name.endswith(self.routing_bias):
            return super()._take(name, 1, *shape)[0]
        return super()._take(name, *shape)

    def _is_ignored(self, name: str) -> bool:
        """True of the parts that predict more than one token, too."""
        return super()._is_ignored(name) or name.startswith(f"{self._prefix}mtp_")
