"""Qwen2 and Qwen2.5 (Yang et al. 2024): biases on q, k and v only."""

from .decoder import Decoder


class Qwen2ForCausalLM(Decoder):
    """Biases on q, k and v, none on the output."""

    qkv_bias = True
    o_bias = False
