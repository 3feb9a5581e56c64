"""Pooled work of one HTTP request: its inputs go through the engine, some at a time, and end with its connection.

Not all at once: other requests would wait behind thousands of texts. Many inputs count as background work, which
leaves the gaps between others' tokens as they are; keys take turns of a step's inputs in it.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from ....engine.core.outputs import OutputDelta
from ....engine.extras.pooling.params import Pair, PoolingParams, similarity
from ....engine.language.workers.shares import Turns
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.errors import NotReadyError
from ...service import Service, service_of
from .request import length_of

_MANY = 32  # inputs of one request, from which on it is background work
MAX_NUMBERS = 8 * 2**20  # in one answer: 2,048 embeddings of 4,096 dimensions; 32 MiB until they are sent
_STEPS_AHEAD = 3  # steps for which a request has tokens in the queue, or the background work of all requests
Read = Callable[[Any], Sequence[Any]]  # from the Pooler to PooledPrompts, in a thread


@dataclass(frozen=True)
class Usage:
    """Tokens of the inputs."""

    num_tokens: int

    def to_dict(self) -> dict[str, int]:
        """Return OpenAI's form."""
        return {"prompt_tokens": self.num_tokens, "total_tokens": self.num_tokens}


def pooler_of(service: Service) -> Any:
    """Return the model's pooler. Raises a 404 that names the way out, and NotReadyError."""
    if service.state != "ready":
        raise service.lifecycle.not_ready()
    # Here: a server without the extra has no route, and both import torch.
    from ....engine.extras.pooling.params import NO_POOLING
    from ....engine.extras.pooling.pooler import Pooler

    if (pooler := service.engine.part(Pooler)) is None:
        raise HTTPException(404, NO_POOLING)
    return pooler


async def pooled(request: Request, read: Read, *, length: int, user: str = "") -> tuple[list[Any], Usage]:
    """Return the results of `read`'s prompts, as arrays, for a client that waits. `length`: characters to be read.

    Raises InvalidRequestError, HTTPException, QueueFullError, UnavailableError, RequestFailedError, ClientDisconnect.
    """
    work = complete(service_of(request), read, length=length, owner=owner_of(request), user=user)
    return await unless_disconnected(request.receive, work)


async def complete(
    service: Service, read: Read, *, length: int, owner: str, user: str = "", is_background: bool = False
) -> tuple[list[Any], Usage]:
    """Like `pooled`, without a connection. If this is cancelled, the requests are aborted."""
    pooler = pooler_of(service)
    prompts = await service.engine.prompts.run(lambda: read(pooler), length=length)
    if (num_numbers := sum(prompt.num_numbers for prompt in prompts)) > MAX_NUMBERS:
        raise HTTPException(
            413, f"the answer would have {num_numbers} numbers, more than {MAX_NUMBERS}; send fewer or shorter inputs"
        )
    run = _Run(service, prompts, tenant=owner or user, is_background=is_background or len(prompts) >= _MANY)
    try:
        await run.finish()
    finally:
        run.abort()
    return [prompt.task.result for prompt in prompts], Usage(sum(len(prompt.token_ids) for prompt in prompts))


class _BackgroundTurns(Turns):
    """Turns of one engine's background work."""

    def __init__(self, engine: object) -> None:
        super().__init__(_STEPS_AHEAD, is_divided=False)


class _Run:
    """Inputs of one request on their way through the engine, in groups of a step's tokens."""

    def __init__(self, service: Service, prompts: Sequence[Any], *, tenant: str, is_background: bool) -> None:
        self._engine = service.engine
        self._prompts = prompts
        self._tenant = tenant
        self._is_background = is_background
        own = Turns(_STEPS_AHEAD, is_divided=False)
        self._turns = self._engine.state(_BackgroundTurns) if self._is_background else own
        self._running: set[str] = set()

    async def finish(self) -> None:
        """Submit all inputs, and return when all have ended. Raises the failure of the first that failed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for group in self._groups():
                    await self._turns.take(self._tenant)
                    tasks.create_task(self._compute(group)).add_done_callback(self._leave_turn)
        except ExceptionGroup as exc:
            raise exc.exceptions[0] from exc

    def abort(self) -> None:
        """End the requests that are left."""
        running, self._running = self._running, set()  # the sink of an aborted request changes its own set
        for request_id in running:
            self._engine.abort(request_id)

    def _groups(self) -> Iterator[Sequence[Any]]:
        """Yield the inputs in groups of a step's tokens."""
        first, num_tokens = 0, 0
        for number, prompt in enumerate(self._prompts):
            if number > first and num_tokens + len(prompt.token_ids) > self._engine.config.max_num_batched_tokens:
                yield self._prompts[first:number]
                first, num_tokens = number, 0
            num_tokens += len(prompt.token_ids)
        yield self._prompts[first:]

    def _leave_turn(self, task: asyncio.Task[None]) -> None:
        self._turns.leave(self._tenant)

    async def _compute(self, group: Sequence[Any]) -> None:
        for end in [await self._submit(prompt) for prompt in group]:
            if (failure := await end) is not None:
                raise failure

    async def _submit(self, prompt: Any) -> "asyncio.Future[Exception | None]":
        """Submit an input. Return its end, which results in its failure."""
        end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def sink(delta: OutputDelta) -> None:
            if delta.finish_reason is None:
                return
            self._running.discard(delta.request_id)
            failure: Exception | None = delta.error
            if failure is None and delta.finish_reason != "stop":
                reason = "the request was cancelled before all inputs were computed"
                failure = NotReadyError(reason, code="cancelled")
            if not end.done():
                end.set_result(failure)

        params = replace(prompt.params, is_background=self._is_background)
        submitted = await self._engine.submit(list(prompt.token_ids), params, sink, tenant=self._tenant)
        self._running.add(submitted.request_id)
        return end


async def scored(
    request: Request, pairs: Sequence[Pair], params: PoolingParams, *, user: str, instruction: str | None = None
) -> tuple[list[float], Usage]:
    """Return each pair's score, by the model's head for pairs or the cosine of its embeddings. Raises like `pooled`."""
    if pooler_of(service_of(request)).classifies:
        read = lambda pooler: pooler.score_prompts(pairs, params, instruction=instruction)  # noqa: E731
        results, usage = await pooled(request, read, length=length_of(pairs), user=user)
        return [float(result[0]) for result in results], usage
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))  # a query of many documents is embedded once
    vectors, usage = await _embedded(request, texts, params, user=user)
    found = dict(zip(texts, (vector.tolist() for vector in vectors), strict=True))
    return [similarity(found[pair.query], found[pair.document]) for pair in pairs], usage


async def _embedded(
    request: Request, texts: Sequence[str], params: PoolingParams, *, user: str
) -> tuple[list[Any], Usage]:
    return await pooled(
        request, lambda pooler: pooler.embedding_prompts(texts, params), length=length_of(texts), user=user
    )
