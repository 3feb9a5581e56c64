"""Conversations in Anthropic's form, checked and converted to the messages that chat templates read.

Anthropic's turns are lists of blocks; a user's turn becomes messages of the roles user and tool.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....engine.errors import InvalidRequestError
from ....engine.language.chat.messages import Message
from ...api.chat.served_tools import ServedTools
from ...api.request_model import ParseContext
from ...api.tolerance import ignore_unknown
from .client_tools import client_tool

_BETWEEN_BLOCKS = "\n\n"
# Claude Code's first system block is for Anthropic's accounting and differs in each request. With it in front, no two
# prompts would share a prefix.
_ACCOUNTING = "x-anthropic-billing-header:"
_TEXTS = ("content", "reasoning_content")
# Keys that are read, and keys that clients send back or that change no text.
_TURN_FIELDS = frozenset(
    {
        *("role", "content", "id", "type", "model", "usage", "stop_reason", "stop_sequence"),
        *("weights_version", "first_weights_version"),
    }
)
_BLOCK_FIELDS = frozenset(
    {
        *("type", "text", "thinking", "signature", "data", "id", "name", "input", "tool_use_id", "content"),
        *("source", "title", "context", "cache_control", "citations", "caller"),
    }
)
_TOOL_FIELDS = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})


def read_conversation(messages: object, *, system: object = None) -> list[Message]:
    """Convert the turns to messages with a role and, optionally, content, tool_calls, tool_call_id, reasoning_content.

    Consecutive turns of one role are joined. Raises InvalidRequestError that names the field.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidRequestError("messages must be a list of at least one message", param="messages")
    text = _system(system)
    runs: list[list[Message]] = [[{"role": "system", "content": text}]] if text else []
    for number, message in enumerate(messages):
        for part in _turn(message, at=f"messages[{number}]"):
            before = runs[-1][0]["role"] if runs else "system"
            if part["role"] == "system" and before != "system":
                part["role"] = "user"  # most templates accept a system message only at the beginning
            if runs and part["role"] == before != "tool":
                runs[-1].append(part)
            else:
                runs.append([part])
    if all(run[0]["role"] == "system" for run in runs):
        raise InvalidRequestError("messages hold nothing to answer", param="messages")
    return [_join(run) for run in runs]


def sorted_tools(tools: object) -> ServedTools:
    """Sort the tools into served functions and ignored ones. Raises InvalidRequestError."""
    if tools is not None and not isinstance(tools, list):
        raise InvalidRequestError("tools must be a list", param="tools")
    served = ServedTools.of([_flat(tool, at=f"tools[{n}]") for n, tool in enumerate(tools or ())], are_flat=True)
    own = [tool for tool in tools or () if "input_schema" in tool]
    served.ignored += sorted({f"tools[].{key}" for tool in own for key in tool if key not in _TOOL_FIELDS})
    return served


def look_into_turns(messages: object, reading: ParseContext) -> None:
    """Note unknown keys of turns and of their blocks. Raises InvalidRequestError."""
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        at = f"messages[{number}]"
        _look_at(message, _TURN_FIELDS, "messages[].", f"{at}.", reading)
        content = message.get("content") if isinstance(message, Mapping) else None
        for place, block in enumerate(content if isinstance(content, list) else ()):
            _look_at(block, _BLOCK_FIELDS, "messages[].content[].", f"{at}.content[{place}].", reading)
            if isinstance(block, Mapping) and _asks_for_citations(block):
                reading.ignore("messages[].content[].citations")


def _asks_for_citations(block: Mapping[str, Any]) -> bool:
    citations = block.get("citations")
    return isinstance(citations, Mapping) and citations.get("enabled") is True


def _look_at(value: object, known: frozenset[str], path: str, place: str, reading: ParseContext) -> None:
    if isinstance(value, Mapping):
        unknown = {name: value[name] for name in sorted(value.keys() - known)}
        ignore_unknown(unknown, reading.ignore, known=known, at=path, place=place)


def _flat(tool: object, *, at: str) -> dict[str, Any]:
    """Convert a tool to the form of /v1/responses."""
    kind = tool.get("type") or "custom" if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(kind, str):
        raise InvalidRequestError(f"{at} must be an object with a name and an input_schema", param=at)
    if kind != "custom" and "input_schema" not in tool:
        known = client_tool(tool)
        if known is None:
            return {"type": kind}  # left out
        tool = known
    if not isinstance(tool.get("input_schema"), Mapping):
        raise InvalidRequestError(f"{at}.input_schema must be a JSON schema, an object", param=f"{at}.input_schema")
    function_fields = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    return {"type": "function", **function_fields, "parameters": tool["input_schema"]}


def _system(system: object) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    if not isinstance(system, list):
        raise InvalidRequestError("system must be a string or a list of text blocks", param="system")
    texts = [_text(block, at=f"system[{number}]") for number, block in enumerate(system)]
    return _BETWEEN_BLOCKS.join(text for text in texts if not text.startswith(_ACCOUNTING))


def _turn(message: object, *, at: str) -> Iterator[Message]:
    """Convert a turn to messages, one per block."""
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{at} must be an object with a role and a content", param=at)
    role, content, at_content = message.get("role"), message.get("content"), f"{at}.content"
    if role not in ("user", "assistant", "system") or not isinstance(role, str):
        raise InvalidRequestError(f"{at}.role must be user, assistant or system", param=f"{at}.role")
    if isinstance(content, str):
        yield {"role": role, "content": content}
    elif isinstance(content, list):
        for number, block in enumerate(content):
            yield from _block_messages(block, role=role, at=f"{at_content}[{number}]")
    else:
        raise InvalidRequestError(f"{at_content} must be a string or a list of blocks", param=at_content)


def _block_messages(block: object, *, role: str, at: str) -> Iterator[Message]:
    kind = _kind(block, at=at)
    assert isinstance(block, Mapping)
    match role, kind:
        case "user", "tool_result":
            call_id, result = _string(block, "tool_use_id", at=at), _result(block.get("content"), at=f"{at}.content")
            yield {"role": "tool", "tool_call_id": call_id, "content": result}
        case "assistant", "thinking":
            yield {"role": role, "content": "", "reasoning_content": _string(block, "thinking", at=at)}
        case "assistant", "tool_use":
            yield {"role": role, "content": "", "tool_calls": [_call(block, at=at)]}  # some templates need a content
        case "assistant", "redacted_thinking":
            pass
        case _:
            yield {"role": role, "content": _text(block, at=at)}


def _call(block: Mapping[str, Any], *, at: str) -> Message:
    if not isinstance(block.get("input"), dict):
        raise InvalidRequestError(f"{at}.input must be an object", param=f"{at}.input")
    function = {"name": _string(block, "name", at=at), "arguments": block["input"]}
    return {"type": "function", "id": _string(block, "id", at=at), "function": function}


def _result(content: object, *, at: str) -> str:
    """Return a tool's result as text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidRequestError(f"{at} must be a string or a list of text blocks", param=at)
    return _BETWEEN_BLOCKS.join(_text(block, at=f"{at}[{number}]") for number, block in enumerate(content))


def _text(block: object, *, at: str) -> str:
    """Return the text of a text, of a document of plain text or of a search result."""
    kind = _kind(block, at=at)
    assert isinstance(block, Mapping)
    if kind == "text":
        return _string(block, "text", at=at)
    if kind == "search_result":
        return _titled(block, _result(block.get("content"), at=f"{at}.content"))
    source = block.get("source")
    if kind == "document" and isinstance(source, Mapping) and source.get("type") == "text":
        return _titled(block, _string(source, "data", at=f"{at}.source"))
    if kind == "document" and isinstance(source, Mapping) and source.get("type") == "content":
        return _titled(block, _result(source.get("content"), at=f"{at}.source.content"))
    raise InvalidRequestError(
        f"{at}: {kind[:40]!r} blocks are not supported here; this model reads text only", param=f"{at}.type"
    )


def _titled(block: Mapping[str, Any], text: str) -> str:
    """Put a document's title, source and context before its text."""
    about = (block.get(name) for name in ("title", "source", "context"))
    return "\n".join([*(line for line in about if isinstance(line, str) and line), text])


def _kind(block: object, *, at: str) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidRequestError(f"{at} must be an object with a type", param=at)
    return kind


def _string(block: Mapping[str, Any], name: str, *, at: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{at}.{name} must be a string", param=f"{at}.{name}")
    return value


def _join(run: Sequence[Message]) -> Message:
    """Join messages of one role into one."""
    if len(run) == 1:
        return run[0]
    message: Message = {"role": run[0]["role"]}
    for name in _TEXTS:
        if any(name in part for part in run):
            message[name] = _BETWEEN_BLOCKS.join(part[name] for part in run if part.get(name))
    calls = [call for part in run for call in part.get("tool_calls", ())]
    return {**message, "tool_calls": calls} if calls else message
