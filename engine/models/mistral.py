"""Mistral (Jiang et al. 2023): a Llama whose layers may see only a sliding window, which config.json states."""

from .decoder import Decoder


class MistralForCausalLM(Decoder):
    """Nothing differs but the window, which is in the config."""
