"""Conversations of OpenAI's clients, checked and converted to the form that chat templates read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...checks import shown
from ...errors import InvalidRequestError

Message = dict[str, Any]

_TEXT_KINDS = ("input_text", "output_text", "text")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_ROLES |= {"tool": "tool", "function": "tool"}  # function: OpenAI's older name
_KNOWN = f"one of {', '.join(_ROLES)}, or one that the model's chat template names"
_MAX_ROLE_CHARS = 64


def read_messages(messages: object) -> list[Message]:
    """Return messages that have a role and, optionally, content, tool_calls, tool_call_id, reasoning_content.

    Parts become one text. The arguments of calls, which clients send as JSON text, become objects, because templates
    expect objects; text that was cut stays text. Any answer of the server's is accepted. Raises InvalidRequestError
    that names the field.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequestError("messages must be a list of at least one message", param="messages")
    return [_message(message, at=f"messages[{number}]", kinds=("text",)) for number, message in enumerate(messages)]


def read_items(items: object) -> list[Message]:
    """Like read_messages, for the `input` of /v1/responses: a text, or messages, calls, their outputs and reasoning.

    Consecutive items of the assistant become one message.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, (list, tuple)) or not items:
        raise InvalidRequestError("input must be a string or a list of at least one item", param="input")
    messages: list[Message] = []
    for number, item in enumerate(items):
        message = _of_item(item, at=f"input[{number}]")
        if messages and _continues(messages[-1], message):
            calls = [*messages[-1].get("tool_calls", ()), *message.get("tool_calls", ())]
            messages[-1] = {**messages[-1], **message, **({"tool_calls": calls} if calls else {})}
        else:
            messages.append(message)
    return [message for message in messages if set(message) != {"role", "reasoning_content"}]


def text_of(content: object, *, at: str, kinds: Sequence[str]) -> str:
    """Return the text of a message: a string, or parts that are all text (of one of the `kinds`)."""
    if isinstance(content, str):
        return content
    if "refusal" in kinds and content in (None, []):
        return ""
    if not isinstance(content, (list, tuple)) or not content:
        raise InvalidRequestError(f"{at} must be a string or a list of text parts", param=at)
    texts = [_text_of_part(part, kinds) for part in content]
    if None in texts:
        shown = " or ".join(f'{{"type": "{kind}", "text": ...}}' for kind in kinds if kind != "refusal")
        raise InvalidRequestError(f"{at}: only parts of {shown} are supported", param=at)
    return "".join(text for text in texts if text is not None)


def _text_of_part(part: object, kinds: Sequence[str]) -> str | None:
    """Return the text of a part, None if it is not of one of the `kinds`."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in kinds:
        return None
    text = part.get("refusal" if kind == "refusal" else "text")
    return text if isinstance(text, str) else None


def _message(message: object, *, at: str, kinds: Sequence[str]) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{at} must be an object with a role and a content", param=at)
    role = message.get("role")
    if not isinstance(role, str) or not role.isidentifier() or len(role) > _MAX_ROLE_CHARS:
        raise InvalidRequestError(f"{at}.role must be {_KNOWN}", param=f"{at}.role")
    if message.get("audio"):
        raise InvalidRequestError(f"{at}.audio is not supported; leave it out", param=f"{at}.audio")
    result: Message = {"role": _ROLES.get(role, role)}
    if role == "assistant":
        result |= _of_the_assistant(message, at=at)
    elif message.get("tool_calls"):
        raise InvalidRequestError(f"{at}.tool_calls goes with the role assistant only", param=f"{at}.tool_calls")
    if message.get("content") is not None or not result.get("tool_calls"):
        result["content"] = _content(message, role=role, at=at, kinds=kinds)
    for name in ("name", "tool_call_id"):
        if message.get(name) is not None:
            result[name] = _string(message[name], at=f"{at}.{name}")
    return result


def check_roles(messages: Sequence[Mapping[str, Any]], *, template: str) -> None:
    """Raise InvalidRequestError if the source of the chat template names not all roles: it might drop a text."""
    for role in {message["role"] for message in messages}.difference(_ROLES.values()):
        if f"'{role}'" not in template and f'"{role}"' not in template:
            reason = f"the chat template does not name the role {shown(role)}; it must be {_KNOWN}"
            raise InvalidRequestError(reason, param="messages")


def _content(message: Mapping[str, Any], *, role: str, at: str, kinds: Sequence[str]) -> str:
    """Return the text of a message. The assistant's may have none, or be a refusal."""
    content = message.get("content")
    if role == "assistant":
        kinds = (*kinds, "refusal")
        content = message.get("refusal") if content is None else content
    return text_of(content, at=f"{at}.content", kinds=kinds)


def _of_the_assistant(message: Mapping[str, Any], *, at: str) -> Message:
    result: Message = {}
    for name in ("reasoning_content", "reasoning"):
        if message.get(name) is not None:
            result.setdefault("reasoning_content", _string(message[name], at=f"{at}.{name}"))
    calls = message.get("tool_calls")
    if calls is None and message.get("function_call"):
        older = {"function": message["function_call"]}
        return result | {"tool_calls": [_call(older, at=at, inner=f"{at}.function_call")]}
    if calls is None:
        return result
    if not isinstance(calls, (list, tuple)):
        raise InvalidRequestError(f"{at}.tool_calls must be a list", param=f"{at}.tool_calls")
    if calls:  # templates test for the key itself
        result["tool_calls"] = [_call(call, at=f"{at}.tool_calls[{number}]") for number, call in enumerate(calls)]
    return result


def _call(call: object, *, at: str, inner: str | None = None) -> Message:
    """Return a call. `inner` is the path of its name and arguments in the request, if not `at`.function."""
    if isinstance(call, Mapping) and call.get("type") == "custom":
        call = _as_function(call)
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise InvalidRequestError(f'{at} must be {{"id", "type": "function", "function": {{...}}}}', param=at)
    result: Message = {"type": "function"}
    if call.get("id") is not None:
        result["id"] = _string(call["id"], at=f"{at}.id")
    inner = inner or f"{at}.function"
    name = _string(function.get("name"), at=f"{inner}.name")
    result["function"] = {"name": name, "arguments": _arguments(function.get("arguments"), at=f"{inner}.arguments")}
    return result


def _as_function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the call of a custom tool as the call of a function with one string."""
    custom = call.get("custom")
    if not isinstance(custom, Mapping):
        return call
    arguments = {"input": custom.get("input", "")}
    return {"id": call.get("id"), "function": {"name": custom.get("name"), "arguments": arguments}}


def _arguments(value: object, *, at: str) -> dict[str, Any] | str:
    """Return the arguments of a call as an object, or as text if they are not JSON: an answer may end within a call.

    Raises InvalidRequestError.
    """
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            arguments = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return {} if arguments is None else arguments if isinstance(arguments, dict) else value
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{at} must be a JSON object, as text", param=at)
    return value


def _string(value: object, *, at: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{at} must be a string", param=at)
    return value


def _of_item(item: object, *, at: str) -> Message:
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(kind, str):
        raise InvalidRequestError(f"{at} must be an object", param=at)
    if kind == "message":
        return _message(item, at=at, kinds=_TEXT_KINDS)
    if kind in ("function_call", "custom_tool_call"):
        own = "function" if kind == "function_call" else "custom"
        fields = {name: item.get(name) for name in ("name", "arguments", "input")}
        call = {"id": item.get("call_id"), "type": own, own: fields}
        return {"role": "assistant", "tool_calls": [_call(call, at=at, inner=at)]}
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = text_of(item.get("output"), at=f"{at}.output", kinds=_TEXT_KINDS)
        return {"role": "tool", "tool_call_id": _string(item.get("call_id"), at=f"{at}.call_id"), "content": output}
    if kind == "reasoning":
        parts = item.get("content") or []
        text = text_of(parts, at=f"{at}.content", kinds=("reasoning_text",)) if parts else ""
        return {"role": "assistant", "reasoning_content": text}
    raise InvalidRequestError(f"{at}.type {kind[:40]!r} is not supported", param=f"{at}.type")


def _continues(earlier: Message, later: Message) -> bool:
    """True if both are parts of one turn of the assistant: reasoning, then content, then calls."""
    if earlier["role"] != "assistant" or later["role"] != "assistant":
        return False
    if "content" in later and not {"content", "tool_calls"}.isdisjoint(earlier):
        return False
    return "reasoning_content" not in later
