"""Mistral (Jiang et al. 2023): a Llama whose layers may see only a sliding window, which config.json states."""

from collections.abc import Mapping
from typing import Any

from .decoder import Decoder


class MistralForCausalLM(Decoder):
    """Llama with a sliding window."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({"sliding_window": 4096, **raw})
