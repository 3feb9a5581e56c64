"""Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024): one matrix for q, k and v, one for gate and up, partial rotation.

The long versions have two sets of rope factors (longrope). Here max_model_len chooses one for good; transformers
switches when a sequence outgrows the original length, and recomputes all of its keys.
"""

from collections.abc import Mapping
from typing import Any

from .decoder import Decoder


class Phi3ForCausalLM(Decoder):
    """Llama whose checkpoint stores q, k, v and gate, up as stacked matrices."""

    partial_rotary = True
    has_one_gate_up = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        scaling = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
        # The first checkpoints' names for longrope.
        if (scaling.get("rope_type") or scaling.get("type")) in ("su", "yarn"):
            fields["rope_scaling"] = {**scaling, "rope_type": "longrope"}
        return fields

    def _load_qkv(self, name: str) -> Any:
        config = self.config
        rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        return self._linear([(f"{name}.qkv_proj", rows)], config.hidden_size, bias=False, rows=self._qkv_rows)
