"""A conversation as OpenAI's clients write it, checked and brought into the form that chat templates read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidRequestError

Message = dict[str, Any]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def read_messages(messages: object) -> list[Message]:
    """The messages, each with a role and, as the case may be, content, tool_calls, tool_call_id, reasoning_content.

    Parts become one text; the arguments of calls, which clients send as JSON text, become objects, as templates expect
    them. Raises InvalidRequestError that names the place.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequestError("messages must be a list of at least one message", param="messages")
    return [_message(message, at=f"messages[{number}]") for number, message in enumerate(messages)]


def text_of(content: object, *, at: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a message: a string, or parts that are all text (of one of the `kinds`)."""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)) or not content:
        raise InvalidRequestError(f"{at} must be a string or a list of text parts", param=at)
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in kinds or not isinstance(part.get("text"), str):
            shown = " or ".join(f'{{"type": "{kind}", "text": ...}}' for kind in kinds)
            raise InvalidRequestError(f"{at}: only parts of {shown} are supported", param=at)
    return "".join(part["text"] for part in content)


def _message(message: object, *, at: str) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{at} must be an object with a role and a content", param=at)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequestError(f"{at}.role must be one of {', '.join(_ROLES)}", param=f"{at}.role")
    for name in ("function_call", "audio"):
        if message.get(name):
            raise InvalidRequestError(f"{at}.{name} is not supported; leave it out", param=f"{at}.{name}")
    read: Message = {"role": _ROLES[role]}
    if role == "assistant":
        read |= _of_the_assistant(message, at=at)
    elif message.get("tool_calls"):
        raise InvalidRequestError(f"{at}.tool_calls goes with the role assistant only", param=f"{at}.tool_calls")
    if message.get("content") is not None or not read.get("tool_calls"):
        read["content"] = text_of(message.get("content"), at=f"{at}.content")
    for name in ("name", "tool_call_id"):
        if message.get(name) is not None:
            read[name] = _string(message[name], at=f"{at}.{name}")
    return read


def _of_the_assistant(message: Mapping[str, Any], *, at: str) -> Message:
    read: Message = {}
    for name in ("reasoning_content", "reasoning"):
        if message.get(name) is not None:
            read.setdefault("reasoning_content", _string(message[name], at=f"{at}.{name}"))
    calls = message.get("tool_calls")
    if calls is None:
        return read
    if not isinstance(calls, (list, tuple)):
        raise InvalidRequestError(f"{at}.tool_calls must be a list", param=f"{at}.tool_calls")
    if calls:  # templates ask whether the key is there
        read["tool_calls"] = [_call(call, at=f"{at}.tool_calls[{number}]") for number, call in enumerate(calls)]
    return read


def _call(call: object, *, at: str) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise InvalidRequestError(f'{at} must be {{"id", "type": "function", "function": {{...}}}}', param=at)
    read: Message = {"type": "function"}
    if call.get("id") is not None:
        read["id"] = _string(call["id"], at=f"{at}.id")
    name = _string(function.get("name"), at=f"{at}.function.name")
    read["function"] = {"name": name, "arguments": _arguments(function.get("arguments"), at=f"{at}.function.arguments")}
    return read


def _arguments(value: object, *, at: str) -> dict[str, Any]:
    """The arguments of a call as an object; what is no JSON object cannot have been a call."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as exc:
            raise InvalidRequestError(f"{at} is not JSON: {str(exc)[:100]}", param=at) from exc
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{at} must be a JSON object, as text", param=at)
    return value


def _string(value: object, *, at: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{at} must be a string", param=at)
    return value
