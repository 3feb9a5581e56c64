"""Errors as Anthropic's clients read them. Statuses are those of all routes, so 503 is not Anthropic's 529."""

from ...http.errors import Problem
from ...http.json_response import JsonResponse

# The types that are not those of the other routes, by status.
_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            "required": ["type", "message"],
        },
        "request_id": {"type": "string", "description": "As in the header request-id."},
    },
    "required": ["type", "error", "request_id"],
}


def envelope(problem: Problem, request_id: str) -> dict[str, object]:
    """The body of an error answer, and the data of an error event."""
    message = problem.message
    if problem.code == "context_length_exceeded":  # what clients look for to compact a conversation
        message = f"prompt is too long: {message}"
    error = {"type": _TYPES.get(problem.status, problem.type), "message": message}
    return {"type": "error", "error": error, "request_id": request_id}


def error_answer(problem: Problem, request_id: str) -> JsonResponse:
    """The answer; its id is under Anthropic's name too."""
    headers = {**problem.headers, "request-id": request_id}
    return JsonResponse(envelope(problem, request_id), status_code=problem.status, headers=headers)
