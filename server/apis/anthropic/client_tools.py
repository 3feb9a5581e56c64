"""Anthropic's tools that the client runs (bash, text editor, memory, computer), as the functions that they are.

A request names such a tool by its type alone; its parameters are known. Anthropic documents them, and so do its SDKs.
"""

from collections.abc import Mapping
from typing import Any

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "integer"}
_RANGE = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
_POINT = _RANGE
_BASH = {"command": _TEXT, "restart": {"type": "boolean"}}
_EDITOR = {
    "command": {"enum": ["view", "create", "str_replace", "insert"]},
    "path": _TEXT,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _NUMBER,
    "insert_text": _TEXT,
    "view_range": _RANGE,
}
_MEMORY = _EDITOR | {
    "command": {"enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
    "old_path": _TEXT,
    "new_path": _TEXT,
}
_ACTIONS = (
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click"),
    *("triple_click", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "screenshot", "zoom"),
    "cursor_position",
)
_COMPUTER = {
    "action": {"enum": [*_ACTIONS]},
    "coordinate": _POINT,
    "start_coordinate": _POINT,
    "text": _TEXT,
    "duration": {"type": "number"},
    "scroll_direction": {"enum": ["up", "down", "left", "right"]},
    "scroll_amount": _NUMBER,
    "region": {"type": "array", "items": _NUMBER, "minItems": 4, "maxItems": 4},
}
# By the beginning of the type: its name, description, properties and required ones.
_TOOLS: Mapping[str, tuple[str, str, Mapping[str, Any], tuple[str, ...]]] = {
    "bash_": ("bash", "Run a command in a bash shell that goes on between calls.", _BASH, ()),
    "text_editor_": (
        "str_replace_based_edit_tool",
        "View, create and edit files of text.",
        _EDITOR,
        ("command", "path"),
    ),
    "memory_": ("memory", "Keep notes in files below /memories for later conversations.", _MEMORY, ("command",)),
    "computer_": ("computer", "Use the screen, the mouse and the keyboard of a computer.", _COMPUTER, ("action",)),
}


def client_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a tool of Anthropic's as one with an input_schema, None if the client does not run it."""
    kind = str(tool.get("type"))
    known = next((known for beginning, known in _TOOLS.items() if kind.startswith(beginning)), None)
    if known is None:
        return None
    name, description, properties, required = known
    size = [f"{tool[key]}" for key in ("display_width_px", "display_height_px") if isinstance(tool.get(key), int)]
    description += f" The screen has {' x '.join(size)} pixels." if len(size) == 2 else ""
    schema = {"type": "object", "properties": dict(properties), "required": [*required]}
    return {"name": tool.get("name", name), "description": description, "input_schema": schema}
