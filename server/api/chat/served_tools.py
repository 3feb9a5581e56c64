"""ServedTools: tools of any type as the functions that a model can call, and the tools that are left out."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....engine.errors import InvalidRequestError
from ....engine.language.chat.tools import Tool, read_tools

_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_CUSTOM_KEYS = ("type", "custom", "name", "description", "format")
_FUNCTION_KEYS = ("function", "parameters")  # a tool with one of them is meant to be a function


@dataclass(kw_only=True)
class ServedTools:
    """Tools of one request. `are_flat`: a tool is the function itself, the form of /v1/responses.

    A custom tool is served as a function with one string, a namespace's tools as functions of their own: if another
    tool has the same name, the model knows them as namespace__name. Tools that their server runs (web_search, …) are
    left out.
    """

    are_flat: bool
    functions: list[Any] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # paths of the functions in the request
    customs: list[str] = field(default_factory=list)  # names of custom tools
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)  # of functions, by the model's name
    ignored: list[str] = field(default_factory=list)  # paths of fields without effect
    counts: Counter[str] = field(default_factory=Counter)  # of the tools' names

    @classmethod
    def of(cls, tools: object, *, are_flat: bool) -> "ServedTools":
        """Sort the tools. Raises InvalidRequestError."""
        served = cls(are_flat=are_flat)
        if tools is not None and not isinstance(tools, (list, tuple)):
            raise InvalidRequestError("tools must be a list", param="tools")
        served.counts.update(_names(tools))
        for number, tool in enumerate(tools or ()):
            served._add(tool, at=f"tools[{number}]")
        return served

    def read(self) -> list[Tool]:
        """Return the functions in the form of chat templates. Raises InvalidRequestError."""
        return read_tools(self.functions, are_flat=self.are_flat, places=self.places)

    def by_own_names(self, items: object) -> Any:
        """Return calls of an input, or choices among the tools, with the names that the model knows."""
        if isinstance(items, list):
            return [self.by_own_names(item) for item in items]
        if not isinstance(items, Mapping):
            return items
        place = items.get("namespace"), items.get("name")
        names = [("name", own) for own, known in self.namespaces.items() if known == place]
        chosen = [("tools", self.by_own_names(items["tools"]))] if "tools" in items else []
        return {**items, **dict(names + chosen)}

    @property
    def strict_names(self) -> frozenset[str]:
        """Names of the `strict` functions. The tools have passed `read`."""
        functions = [tool if self.are_flat else tool["function"] for tool in self.functions]
        return frozenset(function["name"] for function in functions if function.get("strict"))

    def _add(self, tool: object, *, at: str, namespace: str | None = None) -> None:
        kind = tool.get("type", "function") if isinstance(tool, Mapping) else None
        if not isinstance(tool, Mapping) or not isinstance(kind, str) or kind == "function":
            self._add_function(tool, at=at, namespace=namespace)
        elif kind == "custom":
            self._add_custom(tool, at=at, namespace=namespace)
        elif kind == "namespace" and namespace is None:
            for number, inner in enumerate(_inner_tools(tool, at=at)):
                self._add(inner, at=f"{at}.tools[{number}]", namespace=str(tool.get("name", "")))
        elif any(key in tool for key in _FUNCTION_KEYS):
            self._add_function(tool, at=at, namespace=None)  # refused by its type
        else:
            self.ignored.append(f"tools[].{kind[:40]}")

    def _add_function(self, tool: Any, *, at: str, namespace: str | None) -> None:
        name = tool.get("name") if isinstance(tool, Mapping) else None
        if namespace and isinstance(name, str):
            own = self._own_name(name, namespace)
            self.namespaces[own] = namespace, name
            tool = {**tool, "name": own}
        self.functions.append(tool)
        self.places.append(at)

    def _own_name(self, name: str, namespace: str | None) -> str:
        return f"{namespace}__{name}" if namespace and self.counts[name] > 1 else name

    def _add_custom(self, tool: Mapping[str, Any], *, at: str, namespace: str | None) -> None:
        custom = tool.get("custom", tool)
        if not isinstance(custom, Mapping):
            raise InvalidRequestError(f"{at}.custom must be an object with a name", param=f"{at}.custom")
        description, syntax = custom.get("description"), _definition(custom.get("format"))
        if syntax and (description is None or isinstance(description, str)):
            self.ignored.append("tools[].format")
            description = f"{description or ''}\nThe input keeps to this grammar:\n{syntax}".strip()
        self.ignored += [f"tools[].{key}" for key in sorted({**tool, **custom}) if key not in _CUSTOM_KEYS]
        function = {"name": custom.get("name"), "description": description, "parameters": _INPUT, "strict": True}
        self._add_function(
            {"type": "function", **function} if self.are_flat else {"function": function}, at=at, namespace=namespace
        )
        if isinstance(function["name"], str):
            self.customs.append(self._own_name(function["name"], namespace))


def _names(tools: object) -> Iterator[str]:
    for tool in tools if isinstance(tools, (list, tuple)) else ():
        if isinstance(tool, Mapping):
            yield from _names(tool.get("tools"))
            if tool.get("type") != "namespace" and isinstance(name := tool.get("name"), str):
                yield name


def _inner_tools(tool: Mapping[str, Any], *, at: str) -> Iterator[object]:
    tools = tool.get("tools")
    if not isinstance(tools, (list, tuple)):
        raise InvalidRequestError(f"{at}.tools must be a list", param=f"{at}.tools")
    yield from tools


def _definition(custom_format: object) -> str:
    """Return the grammar of a custom tool's input, "" if it has none."""
    if not isinstance(custom_format, Mapping) or custom_format.get("type") != "grammar":
        return ""
    inner = custom_format.get("grammar", custom_format)
    definition = inner.get("definition") if isinstance(inner, Mapping) else None
    return definition if isinstance(definition, str) else ""
