"""Callers: the blocking and the asyncio client behind one interface, so that every test runs with both."""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from splitfuse.client import AsyncClient, AsyncJob, AsyncStream, Client, Job, Result, Stream, StreamEvent


class Caller(Protocol):
    """Interface of a client in the tests."""

    client: Any

    def generate(self, prompt: Any, **sampling: Any) -> Result:
        """Call client.generate."""

    def submit(self, prompt: Any, **sampling: Any) -> Any:
        """Call client.submit."""

    def stream(self, prompt: Any, **sampling: Any) -> Any:
        """Call client.stream."""

    def events(self, stream: Any, at_most: int | None = None) -> list[StreamEvent]:
        """Return the stream's events; after `at_most` events the iteration ends and the stream is closed."""

    def result(self, job: Any, wait: float | None = None) -> Result:
        """Call job.result."""

    def run(self, outcome: Any) -> Any:
        """Return the value of a call that this interface does not have."""

    def collect(self, items: Any) -> list[Any]:
        """Return all items of an iterator."""

    def close(self) -> None:
        """Call client.close."""


class BlockingCaller:
    """Caller with a Client."""

    def __init__(self, url: str | None = None, **options: Any) -> None:
        self.client = Client(url, **options)
        self.client.retry_policy = dataclasses.replace(self.client.retry_policy, first_backoff_s=0.002)

    def generate(self, prompt: Any, **sampling: Any) -> Result:
        return self.client.generate(prompt, **sampling)

    def submit(self, prompt: Any, **sampling: Any) -> Job:
        return self.client.submit(prompt, **sampling)

    def stream(self, prompt: Any, **sampling: Any) -> Stream:
        return self.client.stream(prompt, **sampling)

    def events(self, stream: Stream, at_most: int | None = None) -> list[StreamEvent]:
        events = list(itertools.islice(stream, at_most))
        if at_most is not None:
            stream.close()
        return events

    def result(self, job: Job, wait: float | None = None) -> Result:
        return job.result(wait=wait)

    def run(self, outcome: Any) -> Any:
        return outcome

    def collect(self, items: Any) -> list[Any]:
        return list(items)

    def close(self) -> None:
        self.client.close()


class AsyncCaller:
    """Caller with an AsyncClient, in an event loop that lives as long as the caller."""

    def __init__(self, url: str | None = None, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self.client = AsyncClient(url, **options)
        self.client.retry_policy = dataclasses.replace(self.client.retry_policy, first_backoff_s=0.002)

    def generate(self, prompt: Any, **sampling: Any) -> Result:
        return self._runner.run(self.client.generate(prompt, **sampling))

    def submit(self, prompt: Any, **sampling: Any) -> AsyncJob:
        return self._runner.run(self.client.submit(prompt, **sampling))

    def stream(self, prompt: Any, **sampling: Any) -> AsyncStream:
        return self._runner.run(self._started(self.client.stream(prompt, **sampling)))

    def events(self, stream: AsyncStream, at_most: int | None = None) -> list[StreamEvent]:
        return self._runner.run(self._collect(stream, at_most))

    def result(self, job: AsyncJob, wait: float | None = None) -> Result:
        return self._runner.run(job.result(wait=wait))

    def run(self, outcome: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(outcome)

    def collect(self, items: Any) -> list[Any]:
        return self._runner.run(self._all(items))

    def close(self) -> None:
        self._runner.run(self.client.close())
        self._runner.close()

    async def _started(self, stream: AsyncStream) -> AsyncStream:
        return await stream

    async def _all(self, items: Any) -> list[Any]:
        return [item async for item in items]

    async def _collect(self, stream: AsyncStream, at_most: int | None) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        async for event in stream:
            events.append(event)
            if len(events) == at_most:
                await stream.close()
                break
        return events


CALLERS: list[Callable[..., Caller]] = [BlockingCaller, AsyncCaller]
