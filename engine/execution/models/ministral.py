"""Ministral (Mistral AI 2024): a Mistral only some of whose layers see a window, which layer_types names."""

from .mistral import MistralForCausalLM


class MinistralForCausalLM(MistralForCausalLM):
    """Without layer_types all layers see the window, as in Mistral."""
