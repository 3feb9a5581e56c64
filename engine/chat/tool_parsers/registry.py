"""TOOL_FORMATS: each way in which models write tool calls, and how to know it from a chat template."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..answer_parts import Reader
from .hermes import HermesCalls
from .llama3_json import Llama3Calls

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is `before`, a JSON object with the name and, under `key`, the arguments, and `after`.

    `matches`: whether a chat template asks for this format. `reader`: of calls of these tools.
    """

    before: str
    after: str
    between: str  # two calls
    key: str
    matches: Callable[[str], bool]
    reader: Callable[[Tools], Reader]


TOOL_FORMATS = {
    "hermes": ToolFormat(
        before="<tool_call>\n",
        after="\n</tool_call>",
        between="\n",
        key="arguments",
        # With the latter, Qwen's coder writes XML inside.
        matches=lambda template: "<tool_call>" in template and "<function=" not in template,
        reader=lambda tools: HermesCalls(),
    ),
    "llama3_json": ToolFormat(
        before="",
        after="",
        between="; ",
        key="parameters",
        matches=lambda template: "<|python_tag|>" in template or '{"name": function name, "parameters"' in template,
        reader=lambda tools: Llama3Calls({tool["function"]["name"] for tool in tools}),
    ),
}
DEFAULT_FORMAT = "hermes"  # for calls that a grammar enforces on a model that has no format of its own


def detected_format(template: str) -> str | None:
    """The first format that the chat template asks for; None if it asks for none."""
    return next((name for name, each in TOOL_FORMATS.items() if each.matches(template)), None)
