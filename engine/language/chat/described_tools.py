"""Descriptions of tools, put into the conversation itself for models whose chat template knows no tools.

Calls have Hermes' format, which many models have seen and NEUTRAL_FORMAT reads.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .messages import Message

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_INTRODUCTION = """You can call these functions:
{functions}
To call one, answer with its name and its arguments{as_json}:
{example}"""
_EXAMPLE = f'{OPENING}\n{{"name": "NAME", "arguments": {{"KEY": "VALUE"}}}}\n{CLOSING}'


def introduction(tools: Sequence[Mapping[str, Any]], example: str | None = None) -> str:
    """Describe the tools and the form of a call: that of the `example`, else Hermes'."""
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    as_json = " as JSON" if example is None else ""
    return _INTRODUCTION.format(functions=functions, as_json=as_json, example=example or _EXAMPLE)


def with_system(messages: Sequence[Mapping[str, Any]], text: str) -> list[Message]:
    """Return the conversation with this text at the end of its system message."""
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *map(dict, messages)]
    before = messages[0].get("content") or ""
    return [{**messages[0], "content": f"{before}\n\n{text}".strip()}, *map(dict, messages[1:])]


def calls_as_text(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the conversation with calls and results as text; roles alternate as before.

    Earlier calls are in the text of their messages. The results of several tools and the user's text that follows them
    are one message of the user.
    """
    turns: list[Message] = []
    is_joined = False
    for message in messages:
        text = _as_text(message)
        if is_joined and text["role"] == "user":
            turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}\n{text['content']}"}
        else:
            turns.append(text)
        is_joined = message["role"] == "tool"
    return turns


def _as_text(message: Mapping[str, Any]) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    texts = [message["content"]] if message.get("content") else []
    texts += [f"{OPENING}\n{json.dumps(call['function'], ensure_ascii=False)}\n{CLOSING}" for call in calls]
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": "\n".join(texts)}
