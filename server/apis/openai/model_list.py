"""Entries of /v1/models: in OpenAI's form, or in Anthropic's for a request with its header."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from ...service import Service, service_of


def is_anthropic(request: Request) -> bool:
    """True if the client is one of Anthropic's API, which has the same path."""
    return "anthropic-version" in request.headers


def described(request: Request, name: str) -> dict[str, Any]:
    """Describe the model under one of its names."""
    return (_anthropic if is_anthropic(request) else _openai)(service_of(request), name)


def page_of_models(data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Build Anthropic's list, whose only page has all names."""
    return {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}


def _openai(service: Service, name: str) -> dict[str, Any]:
    adapter = next((adapter for adapter in service.adapters if adapter.name == name), None)
    base = service.settings.model_name
    return {
        "id": name,
        "object": "model",
        "created": int(service.start_time if adapter is None else adapter.created),
        "owned_by": "splitfuse-demo" if service.settings.is_demo else "splitfuse",
        **({} if adapter is None else {"root": base, "parent": base}),
        "max_model_len": service.engine.max_model_len,
        "default_sampling_params": service.engine.default_sampling_params,
    }


def _anthropic(service: Service, name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(int(service.start_time), UTC).isoformat().replace("+00:00", "Z")
    limit = service.engine.max_model_len
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": limit,
        "max_tokens": limit,
    }
