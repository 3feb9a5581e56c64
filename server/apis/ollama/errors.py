"""Errors in Ollama's form: a sentence, with the statuses of all routes."""

from ...http.errors import Problem
from ...http.json_response import JsonResponse

SCHEMA = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def envelope(problem: Problem) -> dict[str, str]:
    """Build the body of an error answer, which is also an error's line in a stream."""
    return {"error": problem.message}


def error_answer(problem: Problem, request_id: str) -> JsonResponse:
    """Build the error answer."""
    return JsonResponse(envelope(problem), status_code=problem.status, headers=dict(problem.headers))
