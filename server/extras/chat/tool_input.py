"""The arguments of a call as an object, for the APIs that do not send them as text."""

from typing import Any

from pydantic_core import from_json


def tool_input(text: str) -> dict[str, Any]:
    """The object; of text that an output's end has cut off as much as there is, nothing of what is no JSON object."""
    try:
        value = from_json(text, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
