"""The plain client: submits, polls, streams and cancels over HTTP, and tries again where that makes sense."""

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, Unpack

import httpx

from . import base, messages
from .base import TRANSPORT_ERRORS, BaseClient, BaseStream
from .errors import APIConnectionError, APIError
from .events import StreamEvent
from .messages import Answer, Prompt, Request
from .results import Result, read_page, read_result
from .retry import Deadline
from .sampling import Sampling, mii_fields, prompt_list


class Client(BaseClient):
    """A server over HTTP. `timeout` bounds every call as a whole, streams and retries included (None: no bound).

    `base_url` and `api_key` default to SPLITFUSE_BASE_URL and SPLITFUSE_API_KEY. Safe to share between threads.
    A read cannot be cut short from outside, so a silent stream may outlast the timeout by one read timeout.
    """

    _sleep: Callable[[float], None] = staticmethod(time.sleep)

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = 60.0,
        *,
        max_retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout, max_retries)
        self._http = httpx.Client(transport=transport, **self.http_options())
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()

    def generate(self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]) -> Result:
        """Submit, wait, return the finished result; leaving early (timeout, Ctrl-C) cancels the request."""
        deadline = self.retry_policy.begin()
        seq_id = self._submit(prompt, sampling, deadline, idempotency_key)
        try:
            result = self._poll(seq_id, math.inf, deadline)
        except BaseException as error:
            if base.is_unfinished_after(error):
                self._cancel(seq_id)
            raise
        return base.raise_if_failed(result)

    def __call__(
        self, prompts: str | Sequence[Prompt], *, max_new_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> list[Result]:
        """A prompt or many, a result for each: DeepSpeed-MII's shape. If one fails, the others are cancelled."""
        deadline = self.retry_policy.begin()
        fields = mii_fields(sampling, max_new_tokens)
        seq_ids: list[str] = []
        results: list[Result] = []
        try:
            for prompt in prompt_list(prompts):
                seq_ids.append(self._submit(prompt, fields, deadline))
            for seq_id in seq_ids:
                results.append(base.raise_if_failed(self._poll(seq_id, math.inf, deadline)))
        except BaseException:
            for seq_id in seq_ids[len(results) :]:
                self._cancel(seq_id)
            raise
        return results

    def submit(self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]) -> "Job":
        """Submit and return at once."""
        return self.job(self._submit(prompt, sampling, self.retry_policy.begin(), idempotency_key))

    def stream(self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]) -> "Stream":
        """Submit and iterate over the events; leaving the iteration early cancels the request."""
        deadline = self.retry_policy.begin()
        return Stream(self, self._submit(prompt, sampling, deadline, idempotency_key), submitted=deadline)

    def job(self, seq_id: str) -> "Job":
        """A request that was submitted before, perhaps by another process."""
        return Job(self, seq_id)

    def results(self, *, status: str | None = None) -> Iterator[Result]:
        """The results that the server keeps of this key's requests, newest first, without their outputs."""
        after: str | None = None
        while True:
            request = messages.results(status=status, after=after)
            page, after = read_page(self._ask(request, self.retry_policy.begin()).json())
            yield from page
            if after is None:
                return

    def delete_results(self) -> int:
        """Stop all of this key's requests and make the server forget them. Returns how many there were."""
        return int(self._ask(messages.delete_results(), self.retry_policy.begin()).json()["deleted"])

    def is_ready(self) -> bool:
        """Whether the server takes requests now."""
        return self._probe("/ready")

    def is_healthy(self) -> bool:
        """Whether the server's engine makes progress."""
        return self._probe("/health")

    def close(self) -> None:
        """End open streams and close the connections."""
        for stream in list(self._streams):
            stream.close()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, prompt: Prompt, sampling: Any, deadline: Deadline, idempotency_key: str | None = None) -> str:
        return self._ask(messages.submit(prompt, sampling, idempotency_key), deadline).seq_id()

    def _poll(self, seq_id: str, seconds: float, deadline: Deadline) -> Result:
        """The result once it is finished, or as it stands after `seconds`."""
        until = deadline.elapsed() + seconds
        backoff = base.FIRST_POLL_BACKOFF_S
        while True:
            asked = deadline.elapsed()
            wait = deadline.left(at_most=min(max(until - asked, 0.0), base.MAX_POLL_S)) or 0.0
            result = read_result(self._ask(messages.read(seq_id, wait), deadline).json())
            now = deadline.elapsed()
            if result.is_finished or now >= until:
                return result
            if now - asked < wait / 2:  # this server does not wait
                self._sleep(min(backoff, until - now))
                backoff = min(backoff * 2, base.MAX_POLL_BACKOFF_S)

    def _cancel(self, seq_id: str) -> None:
        """Tell the server that the result is not wanted; if that fails, the request ends by itself at max_tokens."""
        with contextlib.suppress(APIError):
            self._send(messages.cancel(seq_id), base.CANCEL_TIMEOUT_S)

    def _probe(self, path: str) -> bool:
        try:
            return self._send(Request("GET", path), self.retry_policy.timeout).status == 200
        except APIConnectionError:
            return False

    def _ask(self, request: Request, deadline: Deadline) -> Answer:
        """Send until there is a good answer, the retries are used up, or an error says that they are of no use."""
        num_failures = 0
        while True:
            try:
                answer = self._send(request, deadline.left(at_most=base.ANSWER_TIMEOUT_S))
                answer.raise_for_status()
                return answer
            except APIError as error:
                if isinstance(error, APIConnectionError) and not request.is_repeatable:
                    raise
                num_failures += 1
                self._sleep(deadline.backoff(error, num_failures=num_failures))

    def _send(self, request: Request, timeout: float | None) -> Answer:
        until = math.inf if timeout is None else time.monotonic() + timeout
        content = bytearray()
        try:
            with contextlib.closing(self._open(request, timeout)) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if time.monotonic() > until:
                        raise TimeoutError("the answer trickles")
        except TRANSPORT_ERRORS as exc:
            raise base.translate(exc, self.base_url) from exc
        return Answer(response.status_code, response.headers, bytes(content))

    def _open(self, request: Request, timeout: float | None) -> httpx.Response:
        return self._http.send(base.build(self._http, request, timeout), stream=True)


class Job:
    """A submitted request: look at it, wait for it, watch it, cancel it."""

    def __init__(self, client: Client, seq_id: str) -> None:
        self.seq_id = seq_id
        self._client = client

    def __repr__(self) -> str:
        return f"Job({self.seq_id!r})"

    def result(self, wait: float | None = None) -> Result:
        """The result once finished, or as it stands after `wait` seconds (0: now).

        Without `wait` it returns only what is finished, or raises APITimeoutError; with it, it never waits
        longer than the client's timeout. A failed request is a result with `error` set.
        """
        client = self._client
        return client._poll(self.seq_id, client._wait_limit(wait), client.retry_policy.begin())

    def stream(self, starting_after: int | None = None) -> "Stream":
        """The events from the beginning, or after the event with that id; leaving early leaves the request running."""
        return Stream(self._client, self.seq_id, starting_after=starting_after)

    def cancel(self) -> None:
        """Stop it if it runs, and make the server forget it. Raises NotFoundError if there is no such request."""
        self._client._ask(messages.cancel(self.seq_id), self._client.retry_policy.begin())


class Stream(BaseStream):
    """Iterates over StreamEvents, re-attaching where the connection broke. The last event has the result."""

    def __init__(
        self, client: Client, seq_id: str, *, starting_after: int | None = None, submitted: Deadline | None = None
    ) -> None:
        """`submitted`: the deadline of a request that was submitted for this stream, and ends with it."""
        super().__init__(client, seq_id, starting_after=starting_after, deadline=submitted)
        self.seq_id: str = seq_id
        self._client = client
        self._owns_request = submitted is not None
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())
        client._streams.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        try:
            event = self._next_event()
        except BaseException as error:
            self._end(is_unfinished=base.is_unfinished_after(error))
            raise
        if event is None:
            raise StopIteration
        if event.result is not None:
            self.result = event.result
            self._end(is_unfinished=False)
        return event

    def close(self) -> None:
        """End the stream; a request that this stream submitted is cancelled."""
        self._end(is_unfinished=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _next_event(self) -> StreamEvent | None:
        """None once the stream was closed, perhaps by another thread meanwhile."""
        while not self._has_ended:
            for event in self._events:
                return event
            try:
                self._events = self._reader.feed(self._next_chunk())
            except APIError as error:
                if not self._has_ended:
                    self._client._sleep(self._backoff(error))
                    self._disconnect()
        self._disconnect()  # what was opened while it was closed
        return None

    def _next_chunk(self) -> bytes:
        timeout = self._deadline.left(at_most=base.READ_TIMEOUT_S)
        try:
            if self._response is None:
                self._connect(timeout)
            chunk = next(self._chunks, None)
        except TRANSPORT_ERRORS as exc:
            raise base.translate(exc, self._client.base_url) from exc
        if chunk is None:
            raise APIConnectionError(f"the stream of {self.seq_id} ended before its last event")
        return chunk

    def _connect(self, timeout: float | None) -> None:
        request = messages.attach(self.seq_id, self._reader.last_event_id)
        response = self._response = self._client._open(request, timeout)
        content = b"" if response.status_code == 200 else response.read()
        Answer(response.status_code, response.headers, content).raise_unless_stream()
        self._chunks = response.iter_bytes()
        self._reader.reattach()

    def _disconnect(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def _end(self, *, is_unfinished: bool) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        try:
            if is_unfinished and self._owns_request:
                self._client._cancel(self.seq_id)
        finally:
            self._disconnect()
