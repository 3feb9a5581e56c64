"""RequestLog: one line per request once its answer and all of its jobs have ended.

Only a POST counts as a request here: it starts work. The lines have no text of prompts or answers, no keys, and no ids
of results.
"""

import logging
import time
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...http.errors import REQUEST_ID
from ...http.response_middleware import LEFT_STATUS
from ...jobs.job import Job, JobObserver
from ...process.log_format import LOGGER

_OWNER_CHARS = 12


@dataclass(eq=False, slots=True)
class RequestRecord:
    """A request. Times are monotonic seconds; `status` and `end` are 0 until they are known."""

    request_id: str
    arrival: float
    owner: str = ""  # digest of the owner's key
    route: str = ""  # the declared path, because actual paths may hold ids of results
    status: int = 0
    end: float = 0.0
    jobs: list[Job] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        """Return the logged values by name, without unknown ones. Seconds are rounded to milliseconds."""
        outputs = [output for job in self.jobs for output in job.outputs]
        metrics = [output.metrics for output in outputs if output.metrics is not None]
        fields: dict[str, Any] = {
            "route": self.route,
            "status": self.status,
            "finish_reason": ",".join(dict.fromkeys(o.finish_reason for o in outputs if o.finish_reason)) or None,
            "total_s": round(self.end - self.arrival, 3),
            "tenant": self.owner[:_OWNER_CHARS] or None,
        }
        if self.jobs:
            fields |= {
                "prompt_tokens": sum(job.num_prompt_tokens for job in self.jobs),
                "cached_tokens": sum(job.num_cached_tokens for job in self.jobs),
                "output_tokens": sum(job.num_completion_tokens for job in self.jobs),
                "queue_s": self._since(m.first_scheduled_time for m in metrics),
                "ttft_s": self._since(m.first_token_time for m in metrics),
            }
        # Last, because a client may write anything into it, including text that looks like other fields.
        fields["id"] = self.request_id
        return {name: value for name, value in fields.items() if value is not None}

    def _since(self, times: Iterable[float | None]) -> float | None:
        """Return the seconds from the arrival to the first of these times that happened."""
        known = [moment for moment in times if moment is not None]
        return round(min(known) - self.arrival, 3) if known else None


class RequestLog(JobObserver):
    """Log of requests that have ended. Its lines pass the loggers of `set_up_logging`.

    Jobs are created deep inside routes, so a context variable holds the current request.
    """

    def __init__(self) -> None:
        self.current: ContextVar[RequestRecord | None] = ContextVar("splitfuse.request", default=None)
        self._running: dict[Job, RequestRecord] = {}
        self._logger = logging.getLogger(LOGGER)

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
            self._write_if_over(record)

    def answered(self, record: RequestRecord) -> None:
        """Note that the answer is written as far as it will be. A refused request has no running jobs."""
        record.end = time.monotonic()
        if record.status >= 400:
            for job in record.jobs:
                self._running.pop(job, None)
        self._write_if_over(record)

    def _write_if_over(self, record: RequestRecord) -> None:
        if any(job in self._running for job in record.jobs):
            return
        record.end = time.monotonic()
        if self._logger.isEnabledFor(logging.INFO):
            fields = record.fields()
            line = " ".join(f"{name}={value}" for name, value in fields.items())
            self._logger.info("%s", line, extra={"fields": fields})


class WatchRequests:
    """ASGI middleware that reports answers to the log. Runs after the check of the key."""

    def __init__(self, app: ASGIApp, log: RequestLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(scope[REQUEST_ID], time.monotonic(), owner=scope.get("splitfuse.owner", ""))

        async def noting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        token = self._log.current.set(record)
        try:
            await self._app(scope, receive, noting_send)
        except BaseException as exc:
            record.status = record.status or (LEFT_STATUS if isinstance(exc, ClientDisconnect) else 500)
            raise
        finally:
            self._log.current.reset(token)
            record.route = getattr(scope.get("route"), "path", "-")
            self._log.answered(record)
