"""ToolFormat: format of tool calls, described by the text around a call's arguments."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..answer_parts import Reader
from ..call_syntax import CallSyntax

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """Format of calls: `before`, the first call, `between`, the next call, …, `after`.

    `around`: function name -> the text before and after the arguments of its call, whose syntax is `arguments`.
    `reader`: tools -> reader of their calls. `matches`: True if a chat template asks for this format.
    """

    around: Callable[[str], tuple[str, str]]
    reader: Callable[[Tools], Reader]
    matches: Callable[[str], bool]
    before: str = ""
    between: str | None = ""  # None: there is never a second call
    after: str = ""
    arguments: Literal["json", "xml", "python"] = "json"
    trigger: str = ""  # text that always begins calls; "" if no text is that clear
    special_texts: tuple[str, ...] = ()  # parts of the texts above that may be special tokens
    syntax: CallSyntax | None = None  # syntax of a derived format


def in_object(key: str) -> Callable[[str], tuple[str, str]]:
    """Return `around` for calls like {"name": …, KEY: …}."""
    return lambda name: (f'{{"name": {json.dumps(name)}, "{key}": ', "}")


def names_of(tools: Tools) -> frozenset[str]:
    """Return the functions' names."""
    return frozenset(tool["function"]["name"] for tool in tools)
