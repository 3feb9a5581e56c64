"""OpenAI's response_format as structured_outputs. Every route takes either."""

import re
from collections.abc import Mapping
from typing import Any

from ..engine.errors import InvalidRequestError
from ..engine.structured_outputs import StructuredOutputs

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


def _structured_outputs(value: Any) -> StructuredOutputs | None:
    kind = value.get("type") if isinstance(value, dict) else None
    members = {"text": {"type"}, "json_object": {"type"}, "json_schema": {"type", "json_schema"}}
    if not isinstance(kind, str) or kind not in members:
        raise InvalidRequestError(
            f"response_format must be an object with a type, one of {', '.join(members)}", param="response_format.type"
        )
    _refuse_others(value, members[kind], at="response_format")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json_object=True, param="response_format")
    return StructuredOutputs(json=_schema(value.get("json_schema")), param="response_format.json_schema.schema")


def _schema(value: Any) -> dict[str, Any]:
    """The schema in {name, schema, strict, description}; it is always kept to, strict or not."""
    at = "response_format.json_schema"
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{at} must be an object with a name and a schema", param=at)
    _refuse_others(value, {"name", "schema", "strict", "description"}, at=at)
    name, schema = value.get("name"), value.get("schema")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(f"{at}.name must be 1 to 64 letters, digits, _ or -", param=f"{at}.name")
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{at}.schema must be a JSON schema, an object", param=f"{at}.schema")
    for other, kind in (("strict", bool), ("description", str)):
        if not isinstance(value.get(other), (kind, type(None))):
            raise InvalidRequestError(f"{at}.{other} is of the wrong kind", param=f"{at}.{other}")
    return schema


def _refuse_others(value: Mapping[str, Any], known: set[str], *, at: str) -> None:
    unknown = sorted(set(value) - known)
    if unknown:
        raise InvalidRequestError(f"unknown field {at}.{unknown[0]}", param=f"{at}.{unknown[0]}")
