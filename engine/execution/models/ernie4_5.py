"""ERNIE 4.5, dense (Baidu 2025): a Llama that rotates neighbours, with one switch for all biases."""

from collections.abc import Mapping
from typing import Any

from .interleaved_rope import InterleavedRope

_DEFAULTS = {"head_dim": 128, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 500000.0}


class Ernie4_5ForCausalLM(InterleavedRope):
    """Llama with `use_bias`."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        has_bias = bool(raw.get("use_bias", False))
        return super().normalize_config({**_DEFAULTS, **raw, "attention_bias": has_bias, "mlp_bias": has_bias})
