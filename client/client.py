"""The plain client. What is sent and when lives in calls.py; here is only who calls what."""

import contextlib
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

import httpx

from . import calls
from .actions import Steps
from .base import BaseClient, BaseStream
from .events import StreamEvent
from .messages import Prompt, many
from .results import Result
from .sampling import Sampling, of_mii
from .transport import Wire


class Client(BaseClient):
    """A server over HTTP. `timeout` bounds every call as a whole, streams and retries included (None: no bound).

    `base_url` and `api_key` default to SPLITFUSE_BASE_URL and SPLITFUSE_API_KEY. Safe to share between threads.
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
        super().__init__(base_url, api_key, timeout, max_retries)
        self._http = httpx.Client(transport=transport, **self.http_options())
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()

    def generate(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> Result:
        """Submit, wait, return the finished result. A caller who gives up (timeout, Ctrl-C) cancels the request."""
        return self._wire().run(calls.generate(prompt, dict(sampling), self.patience))

    def __call__(
        self, prompts: str | Sequence[Prompt], *, max_new_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> list[Result]:
        """A prompt or many, a result for each: DeepSpeed-MII's shape. If one fails, the others are stopped."""
        return self._wire().run(calls.generate_many(many(prompts), of_mii(sampling, max_new_tokens), self.patience))

    def submit(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> "Job":
        """Submit and return at once."""
        return self.job(self._wire().run(calls.submit_alone(prompt, dict(sampling), self.patience)))

    def stream(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> "Stream":
        """Submit and iterate over the events; leaving the iteration early cancels the request."""
        stream = self._stream(calls.stream(prompt, dict(sampling), self.patience))
        stream.start()
        return stream

    def job(self, seq_id: str) -> "Job":
        """A request that was submitted before, perhaps by another process."""
        return Job(self, seq_id)

    def is_ready(self) -> bool:
        """Whether the server takes requests now."""
        return self._wire().run(calls.probe("/ready", self.patience))

    def is_healthy(self) -> bool:
        """Whether the server's engine makes progress."""
        return self._wire().run(calls.probe("/health", self.patience))

    def close(self) -> None:
        """End open streams and close the connections."""
        for stream in list(self._streams):
            stream.close()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _wire(self) -> Wire:
        return Wire(self._http)

    def _stream(self, steps: Steps[Result], seq_id: str | None = None) -> "Stream":
        stream = Stream(self._wire(), steps, seq_id)
        self._streams.add(stream)
        return stream


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
        return self._client._wire().run(calls.wait(self.seq_id, wait, self._client.patience))

    def stream(self, starting_after: int | None = None) -> "Stream":
        """The events from the beginning, or after the event with that id; leaving early leaves the request running."""
        return self._client._stream(calls.follow(self.seq_id, starting_after, self._client.patience), self.seq_id)

    def cancel(self) -> None:
        """Stop it if it runs, and make the server forget it."""
        self._client._wire().run(calls.cancel(self.seq_id, self._client.patience))


class Stream(BaseStream):
    """Iterates over StreamEvents, re-attaching where the connection broke. The last event has the result."""

    def __init__(self, wire: Wire, steps: Steps[Result], seq_id: str | None = None) -> None:
        super().__init__(seq_id)
        self._wire = wire
        self._steps = steps

    def start(self) -> None:
        """Submit, if that is still to be done."""
        if self.seq_id is None and not self._has_ended:
            self._advance()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        while not self._has_ended:
            event = self._advance()
            if event is not None:
                return event
        raise StopIteration

    def close(self) -> None:
        """End the stream; a request that this stream submitted is cancelled."""
        if self._has_ended:
            return
        self._has_ended = True
        try:
            with contextlib.suppress(GeneratorExit):
                self._wire.advance(self._steps, GeneratorExit())
        finally:
            self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _advance(self) -> StreamEvent | None:
        try:
            event = self._note(self._wire.advance(self._steps))
            if event is not None and event.result is not None:
                self._note(self._wire.advance(self._steps))  # to its end, so that leaving now cancels nothing
        except BaseException:
            self._has_ended = True
            self._wire.close()
            raise
        if self._has_ended:
            self._wire.close()
        return event
