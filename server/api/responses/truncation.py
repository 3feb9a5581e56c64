"""`truncation`: "auto" leaves out the oldest items of a conversation that does not fit, "disabled" refuses it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....engine.extras.chat.messages import Message
from ...settings import Settings
from ..answer_format import AnswerFormat, model_prompt
from .request import ResponsesRequest

if TYPE_CHECKING:
    from ....engine.serving.async_engine import AsyncEngine

_ROOM = 8  # one part of the context in so many is for the output, where the request sets it no limit


async def response_prompt(
    engine: "AsyncEngine", settings: Settings, body: ResponsesRequest, messages: Sequence[Message]
) -> tuple[str, AnswerFormat]:
    """The text of the conversation and the format of the answer, as `model_prompt` has them.

    With truncation auto, what does not fit begins with the earliest message of a user from which on it does; a system
    message before it stays. If it does not fit by the last of these, the engine refuses it. Raises as `model_prompt`.
    """
    num_kept = int(messages[0]["role"] == "system")
    users = [at for at, message in enumerate(messages) if message["role"] == "user" and at > num_kept]

    async def prompt(start: int) -> tuple[str, AnswerFormat]:
        chat = body.chat([*messages[:num_kept], *messages[start:]])
        return await model_prompt(engine, settings, chat, name="input")

    found = await prompt(num_kept)
    if body.truncation == "disabled" or await _fits(engine, body, found[0], default_room=1):
        return found
    low, high = 0, len(users) - 1  # the wanted start is among these
    while low <= high:
        middle = (low + high) // 2
        tried = await prompt(users[middle])
        if await _fits(engine, body, tried[0], default_room=engine.max_model_len // _ROOM):
            found, high = tried, middle - 1
        else:
            found, low = (tried if middle == len(users) - 1 else found), middle + 1
    return found


async def _fits(engine: "AsyncEngine", body: ResponsesRequest, text: str, *, default_room: int) -> bool:
    """Whether the text leaves room for the output."""
    room = body.max_output_tokens if type(body.max_output_tokens) is int else default_room
    cache = engine.loaded.cache
    limit = min(engine.max_model_len, cache.num_blocks * cache.block_size)
    return bool(len(await engine.prompts.encode(text, add_special_tokens=False)) + room <= limit)
