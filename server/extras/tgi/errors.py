"""Errors inside TGI's streams: a sentence and its type."""

from ...http.errors import Problem

_TYPES = {429: "overloaded", 500: "generation", 503: "overloaded"}


def envelope(problem: Problem) -> dict[str, str]:
    """Build the data of an error event."""
    return {"error": problem.message, "error_type": _TYPES.get(problem.status, "validation")}
