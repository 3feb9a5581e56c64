"""Ministral (Mistral AI 2024): a Mistral in which layer_types names the layers with a sliding window."""

from .mistral import MistralForCausalLM


class MinistralForCausalLM(MistralForCausalLM):
    """Mistral with layer_types; without them every layer has the window."""
