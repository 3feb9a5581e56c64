"""Which class serves which architecture name. A family is imported when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from .decoder import Decoder

MODELS = {
    "FalconForCausalLM": ".falcon",
    "GPT2LMHeadModel": ".gpt2",
    "Gemma2ForCausalLM": ".gemma2",
    "Gemma3ForCausalLM": ".gemma3",
    "LlamaForCausalLM": ".llama",
    "MistralForCausalLM": ".mistral",
    "OPTForCausalLM": ".opt",
    "Phi3ForCausalLM": ".phi3",
    "Qwen2ForCausalLM": ".qwen2",
    "Qwen3ForCausalLM": ".qwen3",
}


def model_class(architecture: str) -> "type[Decoder]":
    """The class for config.json's architecture. Raises ConfigError that lists what is known."""
    if architecture not in MODELS:
        raise ConfigError(f"architecture {architecture!r} is not known; known: {', '.join(sorted(MODELS))}")
    module = import_module(MODELS[architecture], __package__)
    found: type[Decoder] = getattr(module, architecture)
    return found
