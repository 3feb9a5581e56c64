"""Llama 1 to 3 (Touvron et al. 2023, Dubey et al. 2024): the decoder as it stands."""

from .decoder import Decoder


class LlamaForCausalLM(Decoder):
    """Nothing differs."""
