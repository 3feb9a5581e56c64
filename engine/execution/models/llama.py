"""Llama 1 to 3 (Touvron et al. 2023, Dubey et al. 2024): the decoder unchanged."""

from collections.abc import Mapping
from typing import Any

from .decoder import Decoder


class LlamaForCausalLM(Decoder):
    """Decoder without a window: transformers ignores sliding_window for Llama."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().normalize_config(raw), "sliding_window": None}
