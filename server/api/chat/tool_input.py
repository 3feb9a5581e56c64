"""Arguments of a call as an object, for APIs that do not send them as text."""

from typing import Any

from pydantic_core import from_json


def tool_input(text: str) -> dict[str, Any]:
    """Parse the arguments. Text that was cut off gives its complete part; text that is not a JSON object gives {}."""
    try:
        value = from_json(text, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
