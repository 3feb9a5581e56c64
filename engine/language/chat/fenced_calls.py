"""Calls in fences of JSON, as models of code write them: each a tool's name and an object of arguments, no more."""

import json
import re
from collections.abc import Callable

from .answer_parts import AnswerPart
from .json_call import CallReader

Fits = Callable[[str, str], bool]  # True if a tool has this name and, where they are checked, these arguments
FENCE = "```json"
_HEAD = re.compile(r'[\s\[{]*(?:"(\w*))?')  # up to the end of the first key
_END = re.compile(r"[}\]\n]\s{0,8}(```)")
_BETWEEN = re.compile(r"\s*[,;]?\s*")


def fenced_calls(
    text: str, number: int, *, keys: tuple[str, str], fits: Fits, is_end: bool
) -> tuple[list[AnswerPart], int] | None:
    """Return the calls in a fence and the position behind it, no calls if it is text; None if more text decides.

    `text` begins behind `FENCE`. It has objects, in a list or behind one another. `number`: of the first call; `keys`:
    of a call's name and of its arguments.
    """
    head = _HEAD.match(text)
    if head is None or (head.end() < len(text) and head[1] not in keys):
        return [], 0
    end = _END.search(text) if "```" in text else None
    if end is None:
        return ([], 0) if is_end else None
    calls = _calls(text[: end.start(1)].strip(), number, keys, fits)
    return calls, end.end() if calls else 0


def _calls(text: str, number: int, keys: tuple[str, str], fits: Fits) -> list[AnswerPart]:
    text = text[1:-1].strip() if text.startswith("[") and text.endswith("]") else text
    parts: list[AnswerPart] = []
    try:
        while text:
            found, end = json.JSONDecoder().raw_decode(text)
            call, *arguments = CallReader(number, keys=keys).read(text[:end])[0]
            is_call = sorted(found) == sorted(keys) and isinstance(found[keys[1]], dict)
            if not is_call or not fits(call.text, "".join(part.text for part in arguments)):
                return []
            parts += [call, *arguments]
            number, text = number + 1, _BETWEEN.sub("", text[end:], count=1)
    except (ValueError, TypeError, RecursionError):  # no JSON, or another value than an object
        return []
    return parts
