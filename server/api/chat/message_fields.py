"""Keys that clients put into messages, items, parts and tools and that nothing reads: ignored by name, or refused.

The engine reads and checks the keys it knows (messages.py); this module looks at the keys that it would pass over.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ....engine.checks import unknown_field
from ....engine.errors import InvalidRequestError
from ..known_fields import (
    IGNORED_KEYS,
    ITEM_FIELDS,
    MEDIA,
    MESSAGE_FIELDS,
    NOTHING,
    PART_FIELDS,
    TOOL_FIELDS,
    asks_for_nothing,
)
from ..request_model import ParseContext
from ..tolerance import ignore_unknown
from .served_tools import ServedTools


def look_into_messages(messages: object, reading: ParseContext, *, known: frozenset[str] = MESSAGE_FIELDS) -> None:
    """Check the messages of a chat. Raises InvalidRequestError."""
    for at, message in _objects(messages, "messages"):
        _look_at(message, at, "messages[]", known, reading)
        _look_into_parts(message.get("content"), f"{at}.content", "messages[].content[]", reading)


def look_into_items(
    items: object, reading: ParseContext, *, field: str = "input", known: frozenset[str] = ITEM_FIELDS
) -> None:
    """Check the input of a response, or the items of another `field`. Raises InvalidRequestError."""
    for at, item in _objects(items, field):
        _look_at(item, at, f"{field}[]", known, reading)
        for name in ("content", "output"):
            _look_into_parts(item.get(name), f"{at}.{name}", f"{field}[].{name}[]", reading)


def look_into_tools(tools: object, reading: ParseContext, *, are_flat: bool = False) -> None:
    """Note tools that are left out, and check objects around a function. Raises InvalidRequestError.

    The function's own keys are all shown to the model.
    """
    if isinstance(tools, list):  # else the engine reports the type
        for path in ServedTools.of(tools, are_flat=are_flat).ignored:
            reading.ignore(path)
    for at, tool in _objects(tools, "tools"):
        if "function" in tool and not are_flat:  # without one, the engine reports the missing key
            _look_at(tool, at, "tools[]", TOOL_FIELDS, reading)


def _look_into_parts(parts: object, at: str, path: str, reading: ParseContext) -> None:
    for place, part in _objects(parts, at):
        kind = part.get("type")
        if isinstance(kind, str) and kind in MEDIA:
            reason = f"{place}: {MEDIA[kind]} parts are not supported: this server serves text models"
            raise InvalidRequestError(reason, param=at)
        _look_at(part, place, path, PART_FIELDS, reading)


def _objects(values: object, at: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a list with their paths."""
    for number, value in enumerate(values if isinstance(values, list) else ()):
        if isinstance(value, Mapping):
            yield f"{at}[{number}]", value


def _look_at(fields: Mapping[str, Any], at: str, path: str, known_names: frozenset[str], reading: ParseContext) -> None:
    for name in sorted(fields.keys() - known_names):
        if name not in IGNORED_KEYS:
            if reading.is_strict:
                raise unknown_field(f"{at}.{name}", [f"{at}.{other}" for other in known_names])
            unknown = {name: fields[name]}
            ignore_unknown(unknown, reading.ignore, known=known_names, at=f"{path}.", place=f"{at}.")
        elif fields[name] is not None and not asks_for_nothing(fields[name], NOTHING):
            reading.ignore(f"{path}.{name}")
