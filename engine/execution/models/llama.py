"""Llama 1 to 3 (Touvron et al. 2023, Dubey et al. 2024): the decoder as it is."""

from collections.abc import Mapping
from typing import Any

from .decoder import Decoder


class LlamaForCausalLM(Decoder):
    """Sees everything: transformers ignores a sliding_window here."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().normalize_config(raw), "sliding_window": None}
