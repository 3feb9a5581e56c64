"""Compaction: a dialogue becomes its user's messages and a summary that the model writes.

The summary travels in `encrypted_content`, as OpenAI's clients expect; here it is base64, not encrypted.
"""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from ....engine.errors import InvalidRequestError
from ....engine.language.chat.messages import Message
from .input_items import Item, input_items

MAX_TOKENS = 1024  # of a summary, if the context has room for them
REQUEST: Message = {
    "role": "user",
    "content": "Summarise our conversation so far, so that it can go on from the summary alone. Keep all facts, names, "
    "decisions and open questions. Answer with the summary only.",
}
_BEGINNING = "Summary of the conversation so far:\n"


def compacted(messages: Sequence[Message], summary: str, *, response_id: str) -> list[Item]:
    """Return the user's messages and the item with the summary."""
    users = [message for message in messages if message["role"] == "user"]
    digest = hashlib.sha256(f"{response_id} compaction".encode()).hexdigest()[:32]
    content = base64.b64encode(summary.encode()).decode()
    item = {"id": f"cmp_{digest}", "type": "compaction", "encrypted_content": content}
    return [*input_items(users, response_id=response_id), item]


def with_summaries(items: Any) -> Any:
    """Return the input with a message in place of each compaction. Raises InvalidRequestError."""
    if not isinstance(items, list):
        return items
    return [
        _message(item, at=f"input[{number}]") if isinstance(item, dict) and item.get("type") == "compaction" else item
        for number, item in enumerate(items)
    ]


def _message(item: Item, *, at: str) -> Item:
    try:
        summary = base64.b64decode(item["encrypted_content"], validate=True).decode()
    except (KeyError, TypeError, ValueError) as exc:
        at = f"{at}.encrypted_content"
        raise InvalidRequestError(f"{at} is not one of this server's", param=at) from exc
    return {"role": "user", "content": _BEGINNING + summary}
