"""Limiter: makes the limits of requests. Loaded with the first budget."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core.request import Request
from ...serving.engine_part import ServedModel
from ...serving.input_processor import TokenizedPrompt
from ...serving.prompt_reader import PromptReader
from .constraint import LimitedGrammar, LimitedThinking
from .limit import ThinkingLimit

if TYPE_CHECKING:
    from ...language.chat.reasoning_parser import ReasoningFormat
    from ...serving.async_engine import AsyncEngine


class Limiter:
    """Maker of the limits of one engine's requests."""

    def __init__(self, model: ServedModel, message: str) -> None:
        self.model = model
        self._message = message

    async def limited(self, prompt: TokenizedPrompt, reader: PromptReader) -> TokenizedPrompt:
        """Limit the reasoning of a request with a budget, if the model is known to think."""
        limit = await self._limit(prompt, reader, num_tokens=prompt.params.thinking_budget or 0)
        return prompt if limit is None else replace(prompt, grammar=LimitedGrammar(limit, prompt.grammar))

    async def stop(
        self, engine: "AsyncEngine", request_id: str, record: Callable[[int], Awaitable[None]]
    ) -> int | None:
        """End the reasoning of a request's outputs here, as if this were their budget, which is recorded before.

        Return the number of tokens that the longest has, None if none of them thinks or may begin to.
        """
        limits = {
            request: await self._limit(
                TokenizedPrompt(request.token_ids[: request.num_prompt_tokens], request.params), engine.prompts
            )
            for request in _outputs(engine, request_id)
        }
        async with engine.between_steps():
            own = [_constraint(request, limits.get(request)) for request in _outputs(engine, request_id)]
            outputs = [output for output in own if output is not None]
            num_tokens = max((state.num_thoughts for _, state in outputs if not state.is_over), default=None)
            if num_tokens is None:
                return None
            await record(num_tokens)
            for request, state in outputs:
                state.limit = replace(state.limit, num_tokens=num_tokens)
                request.constrain(state, replace(request.params, thinking_budget=num_tokens))
        return num_tokens

    async def _limit(
        self, prompt: TokenizedPrompt, reader: PromptReader, *, num_tokens: int = 0
    ) -> ThinkingLimit | None:
        tokenizer = self.model.tokenizer
        form = prompt.params.reasoning_format or await self._own_form(reader)
        if tokenizer is None or form is None:
            return None
        return ThinkingLimit.of(
            form,
            prompt.token_ids,
            message=self._message,
            tokenizer=tokenizer,
            num_tokens=num_tokens,
            vocab_size=max(self.model.runner.loaded.model_config.vocab_size, tokenizer.vocab_size),
        )

    async def _own_form(self, reader: PromptReader) -> "ReasoningFormat | None":
        """Return the form of reasoning in the chat template. Outside of a chat only a tag begins reasoning."""
        tokenizer = self.model.tokenizer
        if tokenizer is None or not tokenizer.has_chat_template:
            return None
        from ...language.chat.reasoning_parser import reasoning_format  # here: for chats alone

        found = (await reader.chat_form()).get("reasoning")
        return None if found is None else replace(reasoning_format(found), is_open=False)


def _outputs(engine: "AsyncEngine", request_id: str) -> list[Request]:
    """Return the unfinished outputs of a request."""
    scheduler = engine.core.scheduler
    return [request for request in (*scheduler.running, *scheduler.waiting) if request.request_id == request_id]


def _constraint(request: Request, limit: ThinkingLimit | None) -> tuple[Request, LimitedThinking] | None:
    """Return the request's own constraint, or a new one around its grammar, behind all of its tokens."""
    own = request.grammar
    if not isinstance(own, LimitedThinking):
        if limit is None:
            return None
        own = LimitedThinking(limit, own)
    own.follow(request.token_ids, num_prompt_tokens=request.num_prompt_tokens)
    return request, own
