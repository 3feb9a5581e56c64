"""The client for asyncio: the same calls as client.py, awaited."""

import asyncio
import contextlib
import weakref
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from . import calls
from .actions import Steps
from .base import BaseClient, BaseStream
from .events import StreamEvent
from .messages import Prompt, many
from .results import Result
from .sampling import Sampling, of_mii
from .transport import AsyncWire


class AsyncClient(BaseClient):
    """A server over HTTP, for asyncio. Arguments and meaning as for Client."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = 60.0,
        *,
        max_retries: int = 5,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout, max_retries)
        self._http = httpx.AsyncClient(transport=transport, **self.http_options())
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()
        self._leaving: set[asyncio.Task[None]] = set()

    async def generate(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> Result:
        """Submit, wait, return the finished result. A caller who gives up cancels the request."""
        return await self._wire().run(calls.generate(prompt, dict(sampling), self.patience))

    async def __call__(
        self, prompts: str | Sequence[Prompt], *, max_new_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> list[Result]:
        """As Client's."""
        steps = calls.generate_many(many(prompts), of_mii(sampling, max_new_tokens), self.patience)
        return await self._wire().run(steps)

    async def submit(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> "AsyncJob":
        """Submit and return at once."""
        return self.job(await self._wire().run(calls.submit_alone(prompt, dict(sampling), self.patience)))

    def stream(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> "AsyncStream":
        """Iterate over the events, submitting first; `await` it to submit now. Leaving early cancels the request."""
        return self._stream(calls.stream(prompt, dict(sampling), self.patience))

    def job(self, seq_id: str) -> "AsyncJob":
        """A request that was submitted before, perhaps by another process."""
        return AsyncJob(self, seq_id)

    async def is_ready(self) -> bool:
        """Whether the server takes requests now."""
        return await self._wire().run(calls.probe("/ready", self.patience))

    async def is_healthy(self) -> bool:
        """Whether the server's engine makes progress."""
        return await self._wire().run(calls.probe("/health", self.patience))

    async def close(self) -> None:
        """End open streams and close the connections."""
        for stream in list(self._streams):
            await stream.close()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._http.aclose()

    aclose = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    def _wire(self) -> AsyncWire:
        return AsyncWire(self._http)

    def _stream(self, steps: Steps[Result], seq_id: str | None = None) -> "AsyncStream":
        stream = AsyncStream(self._wire(), steps, seq_id, self._leaving)
        self._streams.add(stream)
        return stream


class AsyncJob:
    """A submitted request: look at it, wait for it, watch it, cancel it."""

    def __init__(self, client: AsyncClient, seq_id: str) -> None:
        self.seq_id = seq_id
        self._client = client

    def __repr__(self) -> str:
        return f"AsyncJob({self.seq_id!r})"

    async def result(self, wait: float | None = None) -> Result:
        """As Job.result."""
        return await self._client._wire().run(calls.wait(self.seq_id, wait, self._client.patience))

    def stream(self, starting_after: int | None = None) -> "AsyncStream":
        """The events from the beginning, or after the event with that id; leaving early leaves the request running."""
        return self._client._stream(calls.follow(self.seq_id, starting_after, self._client.patience), self.seq_id)

    async def cancel(self) -> None:
        """Stop it if it runs, and make the server forget it."""
        await self._client._wire().run(calls.cancel(self.seq_id, self._client.patience))


class AsyncStream(BaseStream):
    """Iterates over StreamEvents, re-attaching where the connection broke. The last event has the result."""

    def __init__(
        self, wire: AsyncWire, steps: Steps[Result], seq_id: str | None, leaving: set[asyncio.Task[None]]
    ) -> None:
        super().__init__(seq_id)
        self._wire = wire
        self._steps = steps
        self._leaving = leaving

    async def start(self) -> Self:
        """Submit, if that is still to be done; `await stream` says the same."""
        if self.seq_id is None and not self._has_ended:
            await self._advance()
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._has_ended:
            event = await self._advance()
            if event is not None:
                return event
        raise StopAsyncIteration

    async def close(self) -> None:
        """End the stream; a request that this stream submitted is cancelled."""
        if not self._has_ended:
            self._has_ended = True
            await _leave(self._wire, self._steps)

    aclose = close

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._has_ended:
            return
        with contextlib.suppress(RuntimeError):  # no loop runs any more: nobody can be told
            loop = asyncio.get_running_loop()
            task = loop.create_task(_leave(self._wire, self._steps))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _advance(self) -> StreamEvent | None:
        try:
            event = self._note(await self._wire.advance(self._steps))
            if event is not None and event.result is not None:
                self._note(await self._wire.advance(self._steps))  # to its end, so that leaving now cancels nothing
        except BaseException:
            self._has_ended = True
            await self._wire.close()
            raise
        if self._has_ended:
            await self._wire.close()
        return event


async def _leave(wire: AsyncWire, steps: Steps[Result]) -> None:
    try:
        with contextlib.suppress(GeneratorExit):
            await wire.advance(steps, GeneratorExit())
    finally:
        await wire.close()
