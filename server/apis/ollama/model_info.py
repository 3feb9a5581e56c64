"""Descriptions of the served model for /api/tags, /api/ps and /api/show."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...api.chat import ChatSettings
from ...api.chat.answer_format import reasoning_format
from ...http.keys import digest
from ...service import Service
from .response import timestamp

# Ollama's names of our sampling fields, where they differ.
_OPTION_NAMES = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}
_NEVER = "9999-12-31T23:59:59Z"


def listed(service: Service, name: str) -> dict[str, Any]:
    """Describe the model under one of its names."""
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(service.start_time),
        "size": 0,
        "digest": digest(name),
        "details": _details(service),
    }


def running(service: Service, name: str) -> dict[str, Any]:
    """Like `listed`, for a loaded model."""
    loaded = {"expires_at": _NEVER, "size_vram": 0, "context_length": service.engine.max_model_len}
    return listed(service, name) | loaded


def show_model(service: Service) -> dict[str, Any]:
    """Describe the model in full."""
    family = _details(service)["family"]
    info = {"general.architecture": family, f"{family}.context_length": service.engine.max_model_len}
    tokenizer = service.engine.tokenizer
    template = tokenizer.chat_template if tokenizer is not None and tokenizer.has_chat_template else None
    from ....engine.extras.pooling.pooler import Pooler  # imports torch

    pooler = service.engine.part(Pooler)
    capabilities = {
        "completion": service.engine.generates,
        "embedding": pooler is not None and not pooler.classifies,
        "tools": template is not None and service.settings.section(ChatSettings).tool_call_parser != "none",
        "thinking": template is not None and reasoning_format(template, service.settings) is not None,
    }
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in _options(service.default_sampling_params)),
        "template": template.source if template is not None else "",
        "modified_at": timestamp(service.start_time),
        "details": _details(service),
        "model_info": info,
        "capabilities": [name for name, is_there in capabilities.items() if is_there],
    }


def _options(defaults: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the sampling values of requests without their own, under Ollama's names."""
    yield from ((_OPTION_NAMES.get(name, name), value) for name, value in defaults.items())


def _details(service: Service) -> dict[str, Any]:
    config, loaded = service.engine.model_config, service.engine.loaded
    family = str(config.hf_config.get("model_type", "unknown"))
    dtype = str(loaded.dtype).removeprefix("torch.")
    return {
        "parent_model": "",
        "format": "gguf" if str(service.settings.model).endswith(".gguf") else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": dtype if config.quantization is None else config.quantization.name,
    }
