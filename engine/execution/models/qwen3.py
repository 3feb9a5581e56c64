"""Qwen3 (Yang et al. 2025): RMSNorm on every query and key head instead of biases."""

from collections.abc import Mapping
from typing import Any

from .qwen2 import Qwen2ForCausalLM


class Qwen3ForCausalLM(Qwen2ForCausalLM):
    """Qwen2 without biases that normalises queries and keys per head; windows are Qwen2's."""

    qkv_bias = None
    o_bias = None
    qk_norm = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({"head_dim": 128, **raw})
