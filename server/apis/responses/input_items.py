"""Input of a response as items, for GET /v1/responses/{id}/input_items, rebuilt from the kept conversation."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from ....engine.errors import InvalidRequestError
from ....engine.language.chat.messages import Message
from ...api.listing import Page

Item = dict[str, Any]
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


def input_items(messages: Sequence[Message], *, response_id: str) -> list[Item]:
    """Build the items, oldest first, the earlier responses' items included. Ids are stable."""
    items: list[Item] = []
    for number, item in enumerate(part for message in messages for part in _items(message)):
        digest = hashlib.sha256(f"{response_id} input {number}".encode()).hexdigest()[:32]
        items.append({"id": f"{_PREFIXES[item['type']]}_{digest}", "status": "completed", **item})
    return items


def page_of_items(items: Sequence[Item], page: Page) -> list[Item]:
    """Return the items of a page, and one more if there are more. Raises InvalidRequestError."""
    ordered = list(items) if page.ascends else list(reversed(items))
    ids = [item["id"] for item in ordered]
    if page.after is not None and page.after not in ids:
        raise InvalidRequestError("after must be the id of an item of this response's input", param="after")
    first = 0 if page.after is None else ids.index(page.after) + 1
    return ordered[first : first + page.limit]


def _items(message: Message) -> Iterator[Item]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": content}
        return
    if message.get("reasoning_content"):
        text = {"type": "reasoning_text", "text": message["reasoning_content"]}
        yield {"type": "reasoning", "summary": [], "content": [text]}
    if content is not None:
        part: dict[str, Any] = {"type": "input_text", "text": content}
        if role == "assistant":
            part = {"type": "output_text", "text": content, "annotations": [], "logprobs": []}
        yield {"type": "message", "role": role, "content": [part]}
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = function["arguments"]
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
        yield {"type": "function_call", "call_id": call.get("id"), "name": function["name"], "arguments": arguments}
