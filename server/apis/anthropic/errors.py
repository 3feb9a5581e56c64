"""Errors in Anthropic's form. Statuses are the same as on all routes: 503, not Anthropic's 529."""

from ...http.errors import Problem
from ...http.json_response import JsonResponse

# Types, by status, that differ from the other routes'.
_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
NO_THREADS = "thread_unsupported_request"  # code by which the SDKs learn to send the whole conversation
SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}, "details": {"type": "object"}},
            "required": ["type", "message"],
        },
        "request_id": {"type": "string", "description": "Like the header request-id."},
    },
    "required": ["type", "error", "request_id"],
}


def envelope(problem: Problem, request_id: str) -> dict[str, object]:
    """Build the body of an error answer, which is also the data of an error event."""
    message = problem.message
    if problem.code == "context_length_exceeded":  # clients look for this text to compact a conversation
        message = f"prompt is too long: {message}"
    error: dict[str, object] = {"type": _TYPES.get(problem.status, problem.type), "message": message}
    if problem.code == NO_THREADS:
        error["details"] = {"error_code": problem.code, "unsupported": [problem.param]}
    return {"type": "error", "error": error, "request_id": request_id}


def error_answer(problem: Problem, request_id: str) -> JsonResponse:
    """Build the error answer, with its id under Anthropic's name too."""
    headers = {**problem.headers, "request-id": request_id}
    return JsonResponse(envelope(problem, request_id), status_code=problem.status, headers=headers)
