"""RequestEnds: notifies listeners when a request has ended, that is, when its answer and all of its jobs have ended.

Only a POST counts as a request here: it starts work. Holds no text of prompts or answers, and no ids of results.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...http.errors import REQUEST_ID
from ...http.response_middleware import LEFT_STATUS
from ...jobs.job import Job, JobObserver

_log = logging.getLogger("splitfuse.server")


@dataclass(eq=False, slots=True)
class RequestRecord:
    """A request. Times are monotonic seconds; `status` and `end` are 0 until they are known."""

    request_id: str
    headers: Headers
    arrival: float
    owner: str = ""  # digest of the owner's key
    route: str = ""  # the declared path, because actual paths may hold ids of results
    status: int = 0
    end: float = 0.0
    jobs: list[Job] = field(default_factory=list)


class RequestListener(Protocol):
    """Listener for requests that have ended. Must be quick and must not raise."""

    def on_request_end(self, record: RequestRecord) -> None: ...

    def close(self) -> None:
        """Finish: no more requests will come. May take a while."""


class RequestEnds(JobObserver):
    """Link between requests and their jobs.

    Jobs are created deep inside routes, so a context variable holds the current request.
    """

    def __init__(self, listeners: Sequence[RequestListener], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.listeners = listeners
        self.clock = clock
        self.current: ContextVar[RequestRecord | None] = ContextVar("splitfuse.request", default=None)
        self._running: dict[Job, RequestRecord] = {}

    def add_job(self, job: Job) -> None:
        """Add a job to the request that is being read."""
        record = self.current.get()
        if record is not None and not record.status:
            record.jobs.append(job)
            self._running[job] = record
            job.observe(self)

    def job_ended(self, job: Job) -> None:
        """Note that the job has ended."""
        record = self._running.pop(job, None)
        if record is not None and record.end:
            self._notify_if_over(record)

    def answered(self, record: RequestRecord) -> None:
        """Note that the answer is written as far as it will be. A refused request has no running jobs."""
        record.end = self.clock()
        if record.status >= 400:
            for job in record.jobs:
                self._running.pop(job, None)
        self._notify_if_over(record)

    def close(self) -> None:
        """Close the listeners. May take a while, so not for an event loop."""
        for listener in self.listeners:
            listener.close()

    def _notify_if_over(self, record: RequestRecord) -> None:
        if any(job in self._running for job in record.jobs):
            return
        record.end = self.clock()
        for listener in self.listeners:
            try:
                listener.on_request_end(record)
            except Exception:  # a bug of ours: the other listeners and the job continue
                _log.exception("a listener failed at the end of a request")


class WatchRequests:
    """ASGI middleware that reports answers to RequestEnds. Runs after the check of the key."""

    def __init__(self, app: ASGIApp, ends: RequestEnds) -> None:
        self._app = app
        self._ends = ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(
            scope[REQUEST_ID], Headers(scope=scope), self._ends.clock(), owner=scope.get("splitfuse.owner", "")
        )

        async def noting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        token = self._ends.current.set(record)
        try:
            await self._app(scope, receive, noting_send)
        except BaseException as exc:
            record.status = record.status or (LEFT_STATUS if isinstance(exc, ClientDisconnect) else 500)
            raise
        finally:
            self._ends.current.reset(token)
            record.route = getattr(scope.get("route"), "path", "-")
            self._ends.answered(record)
