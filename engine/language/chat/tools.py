"""Tools that a request offers, and its choice among them, checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import InvalidRequestError

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # 64 for OpenAI, 128 for Anthropic
Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Number of calls (none, auto: the model decides, required: at least one, named: exactly one) and their `names`.

    `names` None allows any tool.
    """

    mode: Literal["none", "auto", "required", "named"] = "none"
    names: tuple[str, ...] | None = None

    @property
    def is_forced(self) -> bool:
        """True if the answer must be a call."""
        return self.mode in ("required", "named")

    def among(self, tools: Sequence[Tool]) -> list[Tool]:
        """Return the tools that may be called."""
        if self.mode == "none":
            return []
        return [tool for tool in tools if self.names is None or _name_of(tool) in self.names]


def read_tools(tools: object, *, are_flat: bool = False, places: Sequence[str] = ()) -> list[Tool]:
    """Return the tools in chat templates' form: {"type": "function", "function": {name, description, parameters}}.

    `are_flat`: they come without the inner object, the form of /v1/responses. `places`: their paths in the request.
    Raises InvalidRequestError that names the field.
    """
    if tools is None:
        return []
    if not isinstance(tools, (list, tuple)):
        raise InvalidRequestError("tools must be a list", param="tools")
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"tools takes at most {MAX_TOOLS} tools, not {len(tools)}", param="tools")
    places = places or [f"tools[{number}]" for number in range(len(tools))]
    checked_tools = [_tool(tool, at=at, is_flat=are_flat) for tool, at in zip(tools, places, strict=True)]
    names = [_name_of(tool) for tool in checked_tools]
    for number, (name, place) in enumerate(zip(names, places, strict=True)):
        if name in names[:number]:
            at = f"{place}.name" if are_flat else f"{place}.function.name"
            raise InvalidRequestError(f"{at}: {name!r} stands there twice", param=at)
    return checked_tools


def read_tool_choice(choice: Any, tools: Sequence[Tool]) -> ToolChoice:
    """Return the choice among these tools; the default is auto, or none if there are no tools."""
    if choice is None:
        return ToolChoice("auto" if tools else "none")
    if choice in ("none", "auto", "required"):
        if choice == "required" and not tools:
            raise InvalidRequestError("tool_choice required needs tools", param="tool_choice")
        return ToolChoice(choice if tools else "none")
    mode: Literal["auto", "required", "named"] = "named"
    chosen = [choice]
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        mode, chosen = _allowed(choice)
    names = tuple(map(_chosen_name, chosen))
    if not {_name_of(tool) for tool in tools}.issuperset(names):
        raise InvalidRequestError("tool_choice names a function that is not among tools", param="tool_choice")
    return ToolChoice(mode, names)


def _allowed(choice: Mapping[str, Any]) -> tuple[Literal["auto", "required"], list[Any]]:
    """Return mode and tools of {"type": "allowed_tools", "allowed_tools": {…}}; /v1/responses has no inner object."""
    inner = choice.get("allowed_tools", choice)
    mode, chosen = (inner.get("mode"), inner.get("tools")) if isinstance(inner, Mapping) else (None, None)
    if mode in ("auto", "required") and isinstance(chosen, list) and chosen:
        return mode, chosen
    raise InvalidRequestError(
        'tool_choice allowed_tools takes a mode, "auto" or "required", and a list of at least one of the tools',
        param="tool_choice",
    )


def _name_of(tool: Tool) -> str:
    return str(tool["function"]["name"])


def _chosen_name(choice: Any) -> str:
    """Return the name in {"type": "function", "function": {"name": …}}; /v1/responses leaves out the inner object.

    A custom tool is a function too.
    """
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    function = choice.get(kind, choice) if kind in ("function", "custom") else None
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        return str(function["name"])
    raise InvalidRequestError(
        'tool_choice must be "none", "auto", "required", {"type": "function", "function": {"name": ...}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}',
        param="tool_choice",
    )


def _tool(tool: object, *, at: str, is_flat: bool) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        raise InvalidRequestError(f'{at}.type must be "function"; other tools are not supported', param=f"{at}.type")
    at = at if is_flat else f"{at}.function"
    function = tool if is_flat else tool.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequestError(f"{at} must be an object with a name", param=at)
    if not isinstance(function.get("name"), str) or not _NAME.fullmatch(function["name"]):
        raise InvalidRequestError(f"{at}.name must be 1 to 128 letters, digits, _, . and -", param=f"{at}.name")
    kinds = (
        ("description", str, "a string"),
        ("parameters", Mapping, "a JSON schema, an object"),
        ("strict", bool, "true or false"),
    )
    for name, kind, expected in kinds:
        if function.get(name) is not None and not isinstance(function[name], kind):
            raise InvalidRequestError(f"{at}.{name} must be {expected}", param=f"{at}.{name}")
    # `strict` is for the grammar; no model has seen it in a prompt.
    fields = {name: value for name, value in function.items() if name not in ("strict", "type") and value is not None}
    return {"type": "function", "function": fields}
