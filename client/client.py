"""Client: the calls of AsyncClient for threads. Each runs AsyncClient's coroutine to its end, without an event loop."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

import httpx

from ._sync import BlockingConnections, finish
from .async_client import AsyncClient, AsyncJob, AsyncStream
from .events import StreamEvent
from .messages import Prompt
from .results import Result
from .retry import RetryPolicy
from .sampling import Sampling

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking form of a method: of an object's `_core`, run to its end."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return finish(method(self._core, *args, **options))

    return call


def _iterating(method: Callable[Concatenate[C, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return the blocking form of a method that iterates."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        items = cast(AsyncGenerator[T, None], method(self._core, *args, **options))
        try:
            while True:
                yield finish(items.__anext__())
        except StopAsyncIteration:
            return
        finally:
            finish(items.aclose())

    return call


class _Core(AsyncClient):
    """AsyncClient whose waits block."""

    _connections = BlockingConnections


class Client:
    """Client of a server over HTTP, for threads. `timeout` in seconds bounds a call with its stream and retries.

    Like AsyncClient, but a call returns when it is done. Threads can share a Client. A blocking read cannot be
    interrupted: a silent stream can outlast `timeout` by one read timeout.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = 60.0,
        *,
        max_retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._core = _Core(base_url, api_key, timeout, max_retries=max_retries, transport=cast(Any, transport))

    generate = _blocking(AsyncClient.generate)
    chat = _blocking(AsyncClient.chat)
    chat_stream = _iterating(AsyncClient.chat_stream)
    tokens = _blocking(AsyncClient.tokens)
    results = _iterating(AsyncClient.results)
    delete_results = _blocking(AsyncClient.delete_results)
    verify = _blocking(AsyncClient.verify)
    models = _blocking(AsyncClient.models)
    embed = _blocking(AsyncClient.embed)
    rerank = _blocking(AsyncClient.rerank)
    tokenize = _blocking(AsyncClient.tokenize)
    batch = _blocking(AsyncClient.batch)
    update_weights = _blocking(AsyncClient.update_weights)
    pause = _blocking(AsyncClient.pause)
    resume = _blocking(AsyncClient.resume)
    sleep = _blocking(AsyncClient.sleep)
    wake_up = _blocking(AsyncClient.wake_up)
    is_ready = _blocking(AsyncClient.is_ready)
    is_healthy = _blocking(AsyncClient.is_healthy)
    stop_thinking = _blocking(AsyncClient.stop_thinking)
    close = _blocking(AsyncClient.close)

    def submit(self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]) -> "Job":
        """Submit a request and return at once."""
        return Job(finish(self._core.submit(prompt, idempotency_key=idempotency_key, **sampling)))

    def stream(self, prompt: Prompt, *, idempotency_key: str | None = None, **sampling: Unpack[Sampling]) -> "Stream":
        """Submit a request and iterate over its events; leaving the iteration early cancels the request."""
        stream = self._core.stream(prompt, idempotency_key=idempotency_key, **sampling)
        return Stream(finish(stream.start()))

    def job(self, seq_id: str) -> "Job":
        """Return the job of a request that was submitted before, perhaps by another process."""
        return Job(self._core.job(seq_id))

    def fork(self, seq_id: str, *, at: int | None = None, **changes: Any) -> "Job":
        """Continue a kept answer from its token `at` (None: from its end), and return the fork's job.

        `changes`: fields of POST /fork: output, append_text, append_token_ids, and sampling fields that change.
        """
        return Job(finish(self._core.fork(seq_id, at=at, **changes)))

    @property
    def base_url(self) -> str:
        """Address of the server."""
        return self._core.base_url

    @property
    def retry_policy(self) -> RetryPolicy:
        """Limits of every call; may be replaced by one with other backoffs."""
        return self._core.retry_policy

    @retry_policy.setter
    def retry_policy(self, policy: RetryPolicy) -> None:
        self._core.retry_policy = policy

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Job:
    """Handle of a submitted request: reads its result, streams its events, cancels it."""

    def __init__(self, core: AsyncJob) -> None:
        self.seq_id = core.seq_id
        self._core = core

    result = _blocking(AsyncJob.result)
    cancel = _blocking(AsyncJob.cancel)

    def stream(self, starting_after: int | None = None) -> "Stream":
        """Iterate over all events, or over events after the id `starting_after`; leaving early cancels nothing."""
        return Stream(self._core.stream(starting_after))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.seq_id!r})"


class Stream:
    """Iterator of StreamEvents that reconnects where the connection broke. The last event has the result."""

    def __init__(self, core: AsyncStream) -> None:
        self._core = core

    close = _blocking(AsyncStream.close)

    @property
    def seq_id(self) -> str:
        """Id of the request."""
        assert self._core.seq_id is not None
        return self._core.seq_id

    @property
    def result(self) -> Result | None:
        """Result, once the last event has come."""
        return self._core.result

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        try:
            return finish(self._core.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
