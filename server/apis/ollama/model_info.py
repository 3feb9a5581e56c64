"""Descriptions of the served model for /api/tags, /api/ps and /api/show."""

from collections.abc import Iterator, Mapping
from typing import Any

from ....engine.formats.description import ModelDescription, describe
from ...api.chat import ChatSettings
from ...api.chat.answer_format import reasoning_style
from ...http.keys import digest
from ...service import Service
from .response import timestamp

# Ollama's names of our sampling fields, where they differ.
_OPTION_NAMES = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}
_NEVER = "9999-12-31T23:59:59Z"


def listed(service: Service, name: str) -> dict[str, Any]:
    """Describe the model under one of its names."""
    described = _described(service)
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(service.start_time),
        "size": described.num_bytes,
        "digest": digest(name),
        "details": _details(described),
    }


def running(service: Service, name: str) -> dict[str, Any]:
    """Like `listed`, for a loaded model."""
    loaded = {"expires_at": _NEVER, "size_vram": 0, "context_length": service.engine.max_model_len}
    return listed(service, name) | loaded


async def show_model(service: Service) -> dict[str, Any]:
    """Describe the model in full."""
    described = _described(service)
    info = {
        **described.metadata,
        "general.architecture": described.family,
        "general.parameter_count": described.num_parameters,
        f"{described.family}.context_length": service.engine.max_model_len,
    }
    tokenizer = service.engine.tokenizer
    template = tokenizer.chat_template if tokenizer is not None and tokenizer.has_chat_template else None
    form = {} if template is None else await service.engine.prompts.chat_form()
    from ....engine.extras.pooling.pooler import Pooler  # imports torch

    pooler = service.engine.part(Pooler)
    capabilities = {
        "completion": service.engine.generates,
        "embedding": pooler is not None and not pooler.classifies,
        "tools": template is not None and service.settings.section(ChatSettings).tool_call_parser != "none",
        "thinking": template is not None and reasoning_style(service.settings, form) is not None,
    }
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in _options(service.default_sampling_params)),
        "template": template.source if template is not None else "",
        "modified_at": timestamp(service.start_time),
        "details": _details(described),
        "model_info": info,
        "capabilities": [name for name, is_there in capabilities.items() if is_there],
    }


def _options(defaults: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the sampling values of requests without their own, under Ollama's names."""
    yield from ((_OPTION_NAMES.get(name, name), value) for name, value in defaults.items())


def _details(described: ModelDescription) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": described.format,
        "family": described.family,
        "families": [described.family],
        "parameter_size": described.parameters,
        "quantization_level": described.types,
    }


def _described(service: Service) -> ModelDescription:
    """Describe the served model's files; weights that came from a trainer's memory have none."""
    engine = service.engine
    if engine.weights_path is not None:
        return describe(engine.weights_path)
    return ModelDescription(
        name=service.settings.model_name,
        format="safetensors",
        family=str(engine.model_config.hf_config.get("model_type", "unknown")),
        types=str(engine.loaded.dtype).removeprefix("torch."),
        num_parameters=0,
        num_bytes=0,
    )
