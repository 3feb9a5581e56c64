"""OpenAI's response_format, and text.format of /v1/responses, as structured_outputs. Every route takes either."""

import re
from collections.abc import Mapping
from typing import Any

from ...engine.errors import InvalidRequestError
from ...engine.structured_output.params import StructuredOutputs

_KINDS = ("text", "json_object", "json_schema")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def read_response_format(fields: dict[str, Any]) -> None:
    """Replace a `response_format` among the fields by what it stands for. Raises InvalidRequestError."""
    value = fields.pop("response_format", None)
    if value is None:
        return
    outputs = _structured_outputs(value)
    if outputs is None:
        return
    if fields.get("structured_outputs") is not None:
        raise InvalidRequestError(
            "response_format and structured_outputs both say what shape the output has; send one of them",
            param="response_format",
        )
    fields["structured_outputs"] = outputs


def read_text_format(value: Any) -> StructuredOutputs | None:
    """What `text.format` stands for, whose schema has no object of its own. Raises InvalidRequestError."""
    at = "text.format"
    if _kind(value, at=at) != "json_schema":
        return _without_schema(value, at=at)
    schema = _schema({name: member for name, member in value.items() if name != "type"}, at=at)
    return StructuredOutputs(json=schema, param=f"{at}.schema")


def refuse_others(value: Mapping[str, Any], known: set[str], *, at: str) -> None:
    """Refuse what is not known in the object that stands there."""
    unknown = sorted(set(value) - known)
    if unknown:
        raise InvalidRequestError(f"unknown field {at}.{unknown[0]}", param=f"{at}.{unknown[0]}")


def _structured_outputs(value: Any) -> StructuredOutputs | None:
    at = "response_format"
    if _kind(value, at=at) != "json_schema":
        return _without_schema(value, at=at)
    refuse_others(value, {"type", "json_schema"}, at=at)
    at = f"{at}.json_schema"
    return StructuredOutputs(json=_schema(value.get("json_schema"), at=at), param=f"{at}.schema")


def _kind(value: Any, *, at: str) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidRequestError(f"{at} must be an object with a type, one of {', '.join(_KINDS)}", param=f"{at}.type")
    return kind


def _without_schema(value: Mapping[str, Any], *, at: str) -> StructuredOutputs | None:
    refuse_others(value, {"type"}, at=at)
    return None if value["type"] == "text" else StructuredOutputs(json_object=True, param=at)


def _schema(value: Any, *, at: str) -> dict[str, Any]:
    """The schema in {name, schema, strict, description}; it is always kept to, strict or not."""
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{at} must be an object with a name and a schema", param=at)
    refuse_others(value, {"name", "schema", "strict", "description"}, at=at)
    name, schema = value.get("name"), value.get("schema")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(f"{at}.name must be 1 to 64 letters, digits, _ or -", param=f"{at}.name")
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{at}.schema must be a JSON schema, an object", param=f"{at}.schema")
    for other, kind in (("strict", bool), ("description", str)):
        if not isinstance(value.get(other), (kind, type(None))):
            raise InvalidRequestError(f"{at}.{other} is of the wrong kind", param=f"{at}.{other}")
    return schema
