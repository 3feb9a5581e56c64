"""Errors as Ollama's clients read them: a sentence, with the statuses of all routes."""

from ...http.errors import Problem
from ...http.json_response import JsonResponse

SCHEMA = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def envelope(problem: Problem) -> dict[str, str]:
    """The body of an error answer, and an error's line of a stream."""
    return {"error": problem.message}


def error_answer(problem: Problem, request_id: str) -> JsonResponse:
    """The answer."""
    return JsonResponse(envelope(problem), status_code=problem.status, headers=dict(problem.headers))
