"""ToolFormat: one way in which models write calls of tools, as text around the arguments of each."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..answer_parts import Reader

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """Calls are `before`, the first of them, `between`, the next one, …, `after`.

    `around`: the text before and after the arguments of a call of this function; the arguments are JSON or as
    `arguments` says. `reader`: of calls of these tools. `matches`: whether a chat template asks for this format.
    """

    around: Callable[[str], tuple[str, str]]
    reader: Callable[[Tools], Reader]
    matches: Callable[[str], bool]
    before: str = ""
    between: str | None = ""  # None: there is never a second one
    after: str = ""
    arguments: Literal["json", "xml", "python"] = "json"
    trigger: str = ""  # where it stands in a text, calls begin; "" where no text is so clear
    special_texts: tuple[str, ...] = ()  # of the above, those that may be special tokens


def in_object(key: str) -> Callable[[str], tuple[str, str]]:
    """`around` of {"name": …, KEY: …}."""
    return lambda name: (f'{{"name": {json.dumps(name)}, "{key}": ', "}")


def names_of(tools: Tools) -> frozenset[str]:
    """The functions' names."""
    return frozenset(tool["function"]["name"] for tool in tools)
