"""What Client and AsyncClient share: where the server is, the key, the time limits, and a stream's state."""

import math
import os
from collections.abc import Iterator
from typing import Any

import httpx

from .errors import APIConnectionError, APIError, APITimeoutError, from_envelope, not_reachable
from .events import EventReader, StreamEvent
from .hosts import is_loopback
from .messages import Request
from .results import Result
from .retry import Deadline, RetryPolicy

TRANSPORT_ERRORS = (httpx.RequestError, TimeoutError)  # what httpx and asyncio raise
DEFAULT_BASE_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_S = 10.0
MAX_POLL_S = 30.0  # the server answers after 60 at the latest, proxies often cut at 60
ANSWER_TIMEOUT_S = 90.0  # the longest poll and then some: after that the connection is dead
READ_TIMEOUT_S = 40.0  # the server pings a stream every 15 s, so two pings were missed: the connection is dead
CANCEL_TIMEOUT_S = 2.0  # for a DELETE whose answer is not read
FIRST_POLL_BACKOFF_S, MAX_POLL_BACKOFF_S = 0.05, 1.0  # between polls that are answered at once


class BaseClient:
    """`retry_policy` may be replaced by one with other backoffs."""

    def __init__(self, base_url: str | None, api_key: str | None, timeout: float | None, max_retries: int) -> None:
        url = base_url or os.environ.get("SPLITFUSE_BASE_URL") or DEFAULT_BASE_URL
        self.base_url = (url if "://" in url else f"http://{url}").rstrip("/")
        self.retry_policy = RetryPolicy(timeout=timeout, max_retries=max_retries)
        self._api_key = first_key(os.environ.get("SPLITFUSE_API_KEY", "")) if api_key is None else api_key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    def http_options(self) -> dict[str, Any]:
        """How httpx is to reach the server."""
        return {
            "base_url": self.base_url,
            "headers": {"authorization": f"Bearer {self._api_key}"} if self._api_key else {},
            "trust_env": not is_loopback(httpx.URL(self.base_url).host),  # no proxy leads to a loopback address
            # below the 5 s after which uvicorn closes an idle connection: a POST must not meet a closing one
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=2.0),
        }

    def _wait_limit(self, wait: float | None) -> float:
        """How long to poll for a result: to its end, or `wait` seconds, and less than the timeout."""
        if wait is None:
            return math.inf
        timeout = self.retry_policy.timeout
        return wait if timeout is None else min(wait, 0.9 * timeout)  # rather an unfinished result than an error


class BaseStream:
    """`seq_id`, and after the end `result`; how far the events were read, over all connections."""

    def __init__(self, client: BaseClient, seq_id: str | None, *, starting_after: int | None) -> None:
        self.seq_id = seq_id
        self.result: Result | None = None
        self._policy = client.retry_policy
        self._begun: Deadline | None = None
        self._has_ended = False
        self._reader = EventReader(starting_after)
        self._events: Iterator[StreamEvent] = iter(())  # of the last chunk
        self._failed_at = starting_after  # the last event id at the last failure
        self._num_failures = 0

    @property
    def _deadline(self) -> Deadline:
        if self._begun is None:
            self._begun = self._policy.begin()
        return self._begun

    def _backoff(self, error: APIError) -> float:
        """Seconds to sleep before the next connection; failures count from the last event on. May raise `error`."""
        last_event_id = self._reader.last_event_id
        self._num_failures = 1 if last_event_id != self._failed_at else self._num_failures + 1
        self._failed_at = last_event_id
        return self._deadline.backoff(error, num_failures=self._num_failures)


def first_key(keys: str) -> str:
    """The key to send: the server reads several from the same variable, with commas."""
    return keys.split(",")[0].strip()


def build(http: httpx.Client | httpx.AsyncClient, request: Request, timeout: float | None) -> httpx.Request:
    """The request as httpx sends it; `timeout` in seconds for each read."""
    connect = CONNECT_TIMEOUT_S if timeout is None else min(timeout, CONNECT_TIMEOUT_S)
    return http.build_request(
        request.method,
        request.path,
        headers=dict(request.headers),
        content=request.content,
        timeout=httpx.Timeout(timeout, connect=connect),
    )


def translate(exc: Exception, base_url: str) -> APIConnectionError:
    """The error of our tree for one of TRANSPORT_ERRORS."""
    if isinstance(exc, httpx.TimeoutException | TimeoutError) and not isinstance(exc, httpx.ConnectTimeout):
        return APITimeoutError(f"{base_url} did not answer in time")
    return not_reachable(base_url, str(exc) or type(exc).__name__)


def is_unfinished_after(error: BaseException) -> bool:
    """Whether the request may still run after `error`: the caller left or ran out of time, the server did not fail."""
    return not isinstance(error, APIError) or isinstance(error, APITimeoutError)


def raise_if_failed(result: Result) -> Result:
    """The result, unless it is one of a failed request."""
    if result.status == "failed":
        raise from_envelope(vars(result.error) if result.error else None)
    return result
