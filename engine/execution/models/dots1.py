"""dots.llm1 (rednote-hilab 2025): a Qwen3 with DeepSeek-V3's mixtures."""

from collections.abc import Mapping
from typing import Any

from .deepseek_moe import DeepseekSparseDecoder


class Dots1ForCausalLM(DeepseekSparseDecoder):
    """DeepseekSparseDecoder that normalises queries and keys; layers from max_window_layers on may have a window."""

    qk_norm = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {"norm_topk_prob": False, "sliding_window": 4096, "max_window_layers": 62, **raw}
        if fields["sliding_window"] and not fields.get("layer_types"):
            first = int(fields["max_window_layers"])
            layers = range(fields["num_hidden_layers"])
            fields["layer_types"] = ["sliding_attention" if i >= first else "full_attention" for i in layers]
        return super().normalize_config(fields)
