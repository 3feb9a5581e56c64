"""Descriptions of tools, put into the conversation itself for models whose chat template knows no tools.

Calls have Hermes' format, which many models have seen and NEUTRAL_FORMAT reads.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .messages import Message
from .tool_parsers.hermes import CLOSING, OPENING

_INTRODUCTION = """You can call these functions:
{functions}
To call one, answer with its name and its arguments as JSON:
{opening}
{{"name": "NAME", "arguments": {{"KEY": "VALUE"}}}}
{closing}"""


def described(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, has_system: bool = True
) -> list[Message]:
    """Return the conversation with tools, calls and results as text.

    The tools are in the system message, or in the first message without `has_system`. Earlier calls are in the text of
    their messages, and their results in messages of the user. Roles alternate as before.
    """
    told = _as_texts(messages)
    if not tools:
        return told
    text = _introduction(tools)
    if has_system and (not told or told[0]["role"] != "system"):
        return [{"role": "system", "content": text}, *told]
    first = f"{told[0].get('content') or ''}\n\n{text}" if has_system else f"{text}\n\n{told[0].get('content') or ''}"
    return [{**told[0], "content": first.strip()}, *told[1:]]


def _introduction(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return _INTRODUCTION.format(functions=functions, opening=OPENING, closing=CLOSING)


def _as_texts(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Join the results of several tools and the user's text that follows them into one message."""
    told: list[Message] = []
    is_joined = False
    for message in messages:
        text = _as_text(message)
        if is_joined and text["role"] == "user":
            told[-1] = {**told[-1], "content": f"{told[-1]['content']}\n{text['content']}"}
        else:
            told.append(text)
        is_joined = message["role"] == "tool"
    return told


def _as_text(message: Mapping[str, Any]) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    texts = [message["content"]] if message.get("content") else []
    texts += [f"{OPENING}\n{json.dumps(call['function'], ensure_ascii=False)}\n{CLOSING}" for call in calls]
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": "\n".join(texts)}
