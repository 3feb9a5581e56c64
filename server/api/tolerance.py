"""The rule for unknown fields on APIs that others define: ignored by name, unless ignoring could change the answer.

Refused: names one or two letters away from a known name, and names that speak of a turn, a schema, a stop or a limit.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from ...engine.checks import unknown_field
from ...engine.errors import InvalidRequestError
from .known_fields import NOTHING, asks_for_nothing

# Words of names. A field with one of them may carry …
_WEIGHTY = frozenset(
    {
        # a limit
        *("max", "min", "limit", "limits", "length", "tokens", "budget", "predict", "truncate", "truncation"),
        *("timeout", "deadline"),
        # a stop
        *("stop", "stops", "eos"),
        # a schema
        *("schema", "schemas", "format", "grammar", "gbnf", "ebnf", "regex", "json", "constraint", "constraints"),
        *("guided", "structured", "choice", "choices"),
        # a turn of the dialogue, or what a turn is made of
        *("thread", "threads", "conversation", "conversations", "previous", "prompt", "prompts", "history", "turns"),
        *("message", "messages", "input", "inputs", "content", "contents", "text", "texts", "system", "instruction"),
        *("instructions", "context", "suffix", "prefix", "template", "tool", "tools", "function", "functions", "mcp"),
        *("image", "images", "audio", "video", "file", "files", "document", "documents"),
        # any of them, in an object
        *("options", "params", "parameters", "config", "body"),
    }
)
# Words that say that the field serves something else than the answer.
_LIGHT = frozenset({"cache", "metadata", "telemetry", "trace"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_LONGEST = 64  # letters of a name that can be near to another
_SHORT = 6  # letters of a known name from which two letters may differ


def ignore_unknown(
    fields: Mapping[str, Any],
    ignore: Callable[[str], None],
    *,
    known: Collection[str],
    at: str,
    place: str | None = None,
) -> None:
    """Ignore these unknown fields, unless they ask for nothing. Raises InvalidRequestError if one must not be ignored.

    `at`: the path before their names; `place`: the same in errors.
    """
    for name, value in fields.items():
        if value is not None and not asks_for_nothing(value, NOTHING):
            _check(name, known, at=at if place is None else place)
            ignore(at + name)


def _check(name: str, known: Collection[str], *, at: str) -> None:
    if any(_is_near(name, other) for other in known):
        raise unknown_field(at + name, [at + other for other in known])
    words = {word.lower() for word in _WORD.findall(name)}
    if words & _WEIGHTY and not words & _LIGHT:
        name = (at + name)[:100]
        raise InvalidRequestError(
            f"unknown field {name!r}; it may carry a turn, a schema, a stop or a limit, so it is not ignored: "
            "leave it out",
            param=name,
        )


@lru_cache(maxsize=2**14)
def _is_near(name: str, known: str) -> bool:
    """True if the names differ in one letter, or in two letters of a long name."""
    most = 1 if len(known) < _SHORT else 2
    if len(known) <= most + 1 or abs(len(name) - len(known)) > most or len(known) > _LONGEST:
        return False
    return len({*name} ^ {*known}) <= 2 * most and _distance(name, known) <= most


def _distance(a: str, b: str) -> int:
    """Count the letters to insert, delete, replace or swap with their neighbour (Damerau, optimal alignment)."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, other in enumerate(b, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and (letter, other) == (b[j - 2], a[i - 2]):
                best = min(best, older[j - 2] + 1)
            row.append(best)
    return row[-1]
