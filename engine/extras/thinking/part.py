"""Thinking: the part of an engine that limits the reasoning of requests, by modules that the first budget loads."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from ...serving.engine_part import EnginePart
from . import ThinkingSettings


class Thinking(EnginePart):
    """Limits of one engine's requests."""

    async def constrained(self, prompt: Any, reader: Any) -> Any:
        """Limit the reasoning of a request that has a budget."""
        params = prompt.params
        if params.thinking_budget is None:
            params = replace(params, thinking_budget=self.model.config.section(ThinkingSettings).thinking_budget)
        if params.thinking_budget in (None, -1) or params.pooling is not None:
            return prompt
        return await self._limiter.limited(replace(prompt, params=params), reader)

    async def stop(self, engine: Any, request_id: str, *, record: Callable[[int], Awaitable[None]]) -> int | None:
        """End the reasoning of a request's outputs; Limiter.stop says more."""
        return await self._limiter.stop(engine, request_id, record)  # type: ignore[no-any-return]

    @cached_property
    def _limiter(self) -> Any:
        from .limiting import Limiter  # here: most servers limit nothing

        return Limiter(self.model, self.model.config.section(ThinkingSettings).thinking_message)
