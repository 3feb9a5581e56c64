"""What /docs shows of requests: path parameters and example bodies. The true rules are SamplingParams'."""

from typing import Any


def path_parameter(name: str) -> dict[str, Any]:
    """An OpenAPI path parameter. FastAPI's own would promise a 422 that this server never gives."""
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]}


def request_body(**example: Any) -> dict[str, Any]:
    """An OpenAPI request body: any object, with this example."""
    schema = {"type": "object", "additionalProperties": True}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}
