"""`truncation`: "auto" drops the oldest items of a conversation that does not fit, "disabled" refuses it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....engine.language.chat.messages import Message
from ...api.chat.answer_format import AnswerFormat, model_prompt
from ...server_settings import ServerSettings
from .request import ResponsesRequest

if TYPE_CHECKING:
    from ....engine.serving.async_engine import AsyncEngine

_OUTPUT_SHARE = 8  # share of the context kept for the output if the request sets no limit: 1 / 8


async def response_prompt(
    engine: "AsyncEngine", settings: ServerSettings, body: ResponsesRequest, messages: Sequence[Message]
) -> tuple[str, AnswerFormat]:
    """Return the text of the conversation and the format of the answer, like `model_prompt`.

    With truncation auto, a conversation that does not fit starts at the earliest user message from which it fits; a
    system message at the front stays. If no start fits, the engine refuses the last one tried. Raises like
    `model_prompt`.
    """
    num_kept = int(messages[0]["role"] == "system")
    users = [at for at, message in enumerate(messages) if message["role"] == "user" and at > num_kept]

    async def prompt(start: int) -> tuple[str, AnswerFormat]:
        chat = body.chat([*messages[:num_kept], *messages[start:]])
        return await model_prompt(engine, settings, chat, name="input")

    best = await prompt(num_kept)
    if body.truncation == "disabled" or await _fits(engine, body, best[0], default_output_tokens=1):
        return best
    low, high = 0, len(users) - 1  # range that contains the wanted start
    while low <= high:
        middle = (low + high) // 2
        candidate = await prompt(users[middle])
        if await _fits(engine, body, candidate[0], default_output_tokens=engine.max_model_len // _OUTPUT_SHARE):
            best, high = candidate, middle - 1
        else:
            best, low = (candidate if middle == len(users) - 1 else best), middle + 1
    return best


async def _fits(engine: "AsyncEngine", body: ResponsesRequest, text: str, *, default_output_tokens: int) -> bool:
    """True if the text leaves enough context for the output."""
    num_output_tokens = body.max_output_tokens if type(body.max_output_tokens) is int else default_output_tokens
    cache = engine.loaded.cache
    limit = min(engine.max_model_len, cache.num_blocks * cache.block_size)
    if num_output_tokens >= limit:  # fits beside no text, and is cut
        num_output_tokens = default_output_tokens
    return bool(len(await engine.prompts.encode(text, add_special_tokens=False)) + num_output_tokens <= limit)
