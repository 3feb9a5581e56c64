"""Qwen3 (Yang et al. 2025): RMSNorm on every query and key head instead of biases."""

from .decoder import Decoder


class Qwen3ForCausalLM(Decoder):
    """Normalises queries and keys per head."""

    qk_norm = True
