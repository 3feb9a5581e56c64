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
    turns = _as_texts(messages)
    if not tools:
        return turns
    text = _introduction(tools)
    if has_system and (not turns or turns[0]["role"] != "system"):
        return [{"role": "system", "content": text}, *turns]
    first = f"{turns[0].get('content') or ''}\n\n{text}" if has_system else f"{text}\n\n{turns[0].get('content') or ''}"
    return [{**turns[0], "content": first.strip()}, *turns[1:]]


def _introduction(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return _INTRODUCTION.format(functions=functions, opening=OPENING, closing=CLOSING)


def _as_texts(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Join the results of several tools and the user's text that follows them into one message."""
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
