"""The client for asyncio: the same calls as client.py, awaited."""

import asyncio
import contextlib
import math
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, Self, Unpack, cast

import httpx

from . import base, messages
from .base import TRANSPORT_ERRORS, BaseClient, BaseStream
from .errors import APIConnectionError, APIError
from .events import StreamEvent
from .messages import Answer, Prompt, Request
from .results import Result, read_page, read_result
from .retry import Deadline
from .sampling import Sampling, mii_fields, prompt_list


class AsyncClient(BaseClient):
    """A server over HTTP, for asyncio. Arguments and meaning as for Client; the timeout is kept to the letter."""

    _sleep: Callable[[float], Awaitable[None]] = staticmethod(asyncio.sleep)

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
        self._closing: set[asyncio.Task[None]] = set()  # streams that were dropped, not closed

    async def generate(
        self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]
    ) -> Result:
        """Submit, wait, return the finished result; leaving early cancels the request."""
        deadline = self.retry_policy.begin()
        seq_id = await self._submit(prompt, sampling, deadline, idempotency_key)
        try:
            result = await self._poll(seq_id, math.inf, deadline)
        except BaseException as error:
            if base.is_unfinished_after(error):
                await self._cancel(seq_id)
            raise
        return base.raise_if_failed(result)

    async def __call__(
        self, prompts: str | Sequence[Prompt], *, max_new_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> list[Result]:
        """As Client's."""
        deadline = self.retry_policy.begin()
        fields = mii_fields(sampling, max_new_tokens)
        seq_ids: list[str] = []
        results: list[Result] = []
        try:
            for prompt in prompt_list(prompts):
                seq_ids.append(await self._submit(prompt, fields, deadline))
            for seq_id in seq_ids:
                results.append(base.raise_if_failed(await self._poll(seq_id, math.inf, deadline)))
        except BaseException:
            for seq_id in seq_ids[len(results) :]:
                await self._cancel(seq_id)
            raise
        return results

    async def submit(
        self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]
    ) -> "AsyncJob":
        """Submit and return at once."""
        return self.job(await self._submit(prompt, sampling, self.retry_policy.begin(), idempotency_key))

    def stream(
        self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]
    ) -> "AsyncStream":
        """Iterate over the events, submitting first; `await` it to submit now. Leaving early cancels the request."""
        return AsyncStream(self, submit=partial(self._submit, prompt, sampling, idempotency_key=idempotency_key))

    def job(self, seq_id: str) -> "AsyncJob":
        """A request that was submitted before, perhaps by another process."""
        return AsyncJob(self, seq_id)

    async def results(self, *, status: str | None = None) -> AsyncIterator[Result]:
        """As Client.results."""
        after: str | None = None
        while True:
            request = messages.results(status=status, after=after)
            page, after = read_page((await self._ask(request, self.retry_policy.begin())).json())
            for result in page:
                yield result
            if after is None:
                return

    async def delete_results(self) -> int:
        """As Client.delete_results."""
        return int((await self._ask(messages.delete_results(), self.retry_policy.begin())).json()["deleted"])

    async def is_ready(self) -> bool:
        """Whether the server takes requests now."""
        return await self._probe("/ready")

    async def is_healthy(self) -> bool:
        """Whether the server's engine makes progress."""
        return await self._probe("/health")

    async def close(self) -> None:
        """End open streams and close the connections."""
        for stream in list(self._streams):
            await stream.close()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._http.aclose()

    aclose = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _submit(
        self, prompt: Prompt, sampling: Any, deadline: Deadline, idempotency_key: str | None = None
    ) -> str:
        return (await self._ask(messages.submit(prompt, sampling, idempotency_key), deadline)).seq_id()

    async def _poll(self, seq_id: str, seconds: float, deadline: Deadline) -> Result:
        """The result once it is finished, or as it stands after `seconds`."""
        until = deadline.elapsed() + seconds
        backoff = base.FIRST_POLL_BACKOFF_S
        while True:
            asked = deadline.elapsed()
            wait = deadline.left(at_most=min(max(until - asked, 0.0), base.MAX_POLL_S)) or 0.0
            result = read_result((await self._ask(messages.read(seq_id, wait), deadline)).json())
            now = deadline.elapsed()
            if result.is_finished or now >= until:
                return result
            if now - asked < wait / 2:  # this server does not wait
                await self._sleep(min(backoff, until - now))
                backoff = min(backoff * 2, base.MAX_POLL_BACKOFF_S)

    async def _cancel(self, seq_id: str) -> None:
        """Tell the server that the result is not wanted; if that fails, the request ends by itself at max_tokens."""
        with contextlib.suppress(APIError):
            await self._send(messages.cancel(seq_id), base.CANCEL_TIMEOUT_S)

    async def _probe(self, path: str) -> bool:
        try:
            return (await self._send(Request("GET", path), self.retry_policy.timeout)).status == 200
        except APIConnectionError:
            return False

    async def _ask(self, request: Request, deadline: Deadline) -> Answer:
        """Send until there is a good answer, the retries are used up, or an error says that they are of no use."""
        num_failures = 0
        while True:
            try:
                answer = await self._send(request, deadline.left(at_most=base.ANSWER_TIMEOUT_S))
                answer.raise_for_status()
                return answer
            except APIError as error:
                if isinstance(error, APIConnectionError) and not request.is_repeatable:
                    raise
                num_failures += 1
                await self._sleep(deadline.backoff(error, num_failures=num_failures))

    async def _send(self, request: Request, seconds: float | None) -> Answer:
        response = await self._open(request, seconds, is_stream=False)
        return Answer(response.status_code, response.headers, response.content)

    async def _open(self, request: Request, seconds: float | None, *, is_stream: bool) -> httpx.Response:
        """Send once. Of a stream that was accepted the body is not read yet."""
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.send(base.build(self._http, request, seconds), stream=is_stream)
                if response.status_code != 200:
                    await response.aread()
                return response
        except TRANSPORT_ERRORS as exc:
            raise base.translate(exc, self.base_url) from exc


class AsyncJob:
    """A submitted request: look at it, wait for it, watch it, cancel it."""

    def __init__(self, client: AsyncClient, seq_id: str) -> None:
        self.seq_id = seq_id
        self._client = client

    def __repr__(self) -> str:
        return f"AsyncJob({self.seq_id!r})"

    async def result(self, wait: float | None = None) -> Result:
        """As Job.result."""
        client = self._client
        return await client._poll(self.seq_id, client._wait_limit(wait), client.retry_policy.begin())

    def stream(self, starting_after: int | None = None) -> "AsyncStream":
        """The events from the beginning, or after the event with that id; leaving early leaves the request running."""
        return AsyncStream(self._client, seq_id=self.seq_id, starting_after=starting_after)

    async def cancel(self) -> None:
        """Stop it if it runs, and make the server forget it. Raises NotFoundError if there is no such request."""
        await self._client._ask(messages.cancel(self.seq_id), self._client.retry_policy.begin())


class AsyncStream(BaseStream):
    """Iterates over StreamEvents, re-attaching where the connection broke. The last event has the result."""

    def __init__(
        self,
        client: AsyncClient,
        *,
        seq_id: str | None = None,
        starting_after: int | None = None,
        submit: Callable[[Deadline], Awaitable[str]] | None = None,
    ) -> None:
        """`submit`: how to submit the request of this stream, if it is not one that was submitted before."""
        super().__init__(client, seq_id, starting_after=starting_after)
        self._client = client
        self._submit = submit
        self._response: httpx.Response | None = None
        self._chunks: AsyncGenerator[bytes, None] | None = None
        client._streams.add(self)

    async def start(self) -> Self:
        """Submit, unless that is done; `await stream` does the same."""
        if self._submit is not None and self.seq_id is None and not self._has_ended:
            try:
                self.seq_id = await self._submit(self._deadline)
            except BaseException:
                self._has_ended = True
                raise
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if self.seq_id is None:
            await self.start()
        try:
            event = await self._next_event()
        except BaseException as error:
            await self._end(is_unfinished=base.is_unfinished_after(error))
            raise
        if event is None:
            raise StopAsyncIteration
        if event.result is not None:
            self.result = event.result
            await self._end(is_unfinished=False)
        return event

    async def close(self) -> None:
        """End the stream; a request that this stream submitted is cancelled."""
        await self._end(is_unfinished=True)

    aclose = close

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._has_ended:
            return
        with contextlib.suppress(RuntimeError):  # no loop runs any more: nothing can be sent
            task = asyncio.get_running_loop().create_task(self.close())
            self._client._closing.add(task)
            task.add_done_callback(self._client._closing.discard)

    async def _next_event(self) -> StreamEvent | None:
        """None once the stream was closed, perhaps by another task meanwhile."""
        while not self._has_ended:
            for event in self._events:
                return event
            try:
                self._events = self._reader.feed(await self._next_chunk())
            except APIError as error:
                if not self._has_ended:
                    await self._client._sleep(self._backoff(error))
                    await self._disconnect()
        await self._disconnect()  # what was opened while it was closed
        return None

    async def _next_chunk(self) -> bytes:
        if self._chunks is None:
            self._chunks = await self._connect()
        try:
            async with asyncio.timeout(self._deadline.left(at_most=base.READ_TIMEOUT_S)):
                chunk = await anext(self._chunks, None)
        except TRANSPORT_ERRORS as exc:
            raise base.translate(exc, self._client.base_url) from exc
        if chunk is None:
            raise APIConnectionError(f"the stream of {self.seq_id} ended before its last event")
        return chunk

    async def _connect(self) -> AsyncGenerator[bytes, None]:
        assert self.seq_id is not None
        request = messages.attach(self.seq_id, self._reader.last_event_id)
        timeout = self._deadline.left(at_most=base.READ_TIMEOUT_S)
        response = self._response = await self._client._open(request, timeout, is_stream=True)
        content = b"" if response.status_code == 200 else response.content
        Answer(response.status_code, response.headers, content).raise_unless_stream()
        self._reader.reattach()
        return cast(AsyncGenerator[bytes, None], response.aiter_bytes())

    async def _disconnect(self) -> None:
        chunks, self._chunks = self._chunks, None
        response, self._response = self._response, None
        if chunks is not None:
            with contextlib.suppress(RuntimeError):  # another task reads: it ends with the response
                await chunks.aclose()
        if response is not None:
            await response.aclose()

    async def _end(self, *, is_unfinished: bool) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        try:
            if is_unfinished and self._submit is not None and self.seq_id is not None:
                await self._client._cancel(self.seq_id)
        finally:
            await self._disconnect()
