"""Base of both clients: the server's address, the key, the time limits, and the state of a stream."""

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from .errors import APIConnectionError, APIError, APITimeoutError, from_envelope, not_reachable
from .events import EventReader, StreamEvent
from .hosts import is_loopback
from .messages import Answer, Request
from .results import Result
from .retry import Deadline, RetryPolicy

TRANSPORT_ERRORS = (httpx.RequestError, TimeoutError)  # raised by httpx and asyncio
DEFAULT_BASE_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_S = 10.0
MAX_POLL_S = 30.0  # the server answers within 60 s, and proxies often cut at 60 s
ANSWER_TIMEOUT_S = 90.0  # three times the longest poll: by then the connection is dead
READ_TIMEOUT_S = 40.0  # the server pings a stream every 15 s: after two missed pings the connection is dead
CANCEL_TIMEOUT_S = 2.0  # timeout of a DELETE whose answer is not used
BATCH_ENDS = ("completed", "failed", "expired", "cancelled")
FIRST_POLL_BACKOFF_S, MAX_POLL_BACKOFF_S = 0.05, 1.0  # backoffs between polls that return at once


def with_scheme(url: str) -> str:
    """Return a server's address as a URL, without a slash at the end: localhost:8000 is one, too."""
    return (url if "://" in url else f"http://{url}").rstrip("/")


class BaseClient:
    """Base of Client and AsyncClient. `retry_policy` may be replaced by one with other backoffs."""

    def __init__(self, base_url: str | None, api_key: str | None, timeout: float | None, max_retries: int) -> None:
        url = base_url or os.environ.get("SPLITFUSE_BASE_URL") or DEFAULT_BASE_URL
        self.base_url = with_scheme(url)
        self.retry_policy = RetryPolicy(timeout=timeout, max_retries=max_retries)
        self._key_headers = key_headers(api_key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    def http_options(self) -> dict[str, Any]:
        """Return httpx's options for this server."""
        return {
            "base_url": self.base_url,
            "headers": self._key_headers,
            "trust_env": not is_loopback(httpx.URL(self.base_url).host),  # a proxy cannot reach this machine's loopback
            # below the 5 s after which uvicorn closes an idle connection: a POST must not meet a closing one
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=2.0),
        }

    def _wait_limit(self, wait: float | None) -> float:
        """Return how many seconds to poll for a result: until its end, or `wait`, and less than the timeout."""
        if wait is None:
            return math.inf
        timeout = self.retry_policy.timeout
        return wait if timeout is None else min(wait, 0.9 * timeout)  # an unfinished result is better than an error


class BaseStream:
    """State of a stream over all its connections: `seq_id`, the events read so far, and at the end `result`."""

    def __init__(self, client: BaseClient, seq_id: str | None, *, starting_after: int | None) -> None:
        self.seq_id = seq_id
        self.result: Result | None = None
        self._policy = client.retry_policy
        self._begun: Deadline | None = None
        self._has_ended = False
        self._reader = EventReader(starting_after)
        self._events: Iterator[StreamEvent] = iter(())  # the last chunk's events
        self._failed_at = starting_after  # last_event_id at the last failure
        self._num_failures = 0

    @property
    def _deadline(self) -> Deadline:
        if self._begun is None:
            self._begun = self._policy.begin()
        return self._begun

    def _backoff(self, error: APIError) -> float:
        """Return seconds to sleep before the next connection, or raise `error`. An event resets the failure count."""
        last_event_id = self._reader.last_event_id
        self._num_failures = 1 if last_event_id != self._failed_at else self._num_failures + 1
        self._failed_at = last_event_id
        return self._deadline.backoff(error, num_failures=self._num_failures)


def first_key(keys: str) -> str:
    """Return the first key of a comma-separated list: the server reads several from the same variable."""
    return keys.split(",")[0].strip()


def key_headers(api_key: str | None) -> dict[str, str]:
    """Return the header that brings this key, for None the first one of SPLITFUSE_API_KEY; {} without a key."""
    key = first_key(os.environ.get("SPLITFUSE_API_KEY", "")) if api_key is None else api_key
    return {"authorization": f"Bearer {key}"} if key else {}


def build(http: httpx.Client | httpx.AsyncClient, request: Request, timeout: float | None) -> httpx.Request:
    """Return httpx's form of a request; `timeout` in seconds bounds a single read."""
    connect = CONNECT_TIMEOUT_S if timeout is None else min(timeout, CONNECT_TIMEOUT_S)
    return http.build_request(
        request.method,
        request.path,
        headers=dict(request.headers),
        content=request.content,
        timeout=httpx.Timeout(timeout, connect=connect),
    )


def translate(exc: Exception, base_url: str) -> APIConnectionError:
    """Return the APIError for one of TRANSPORT_ERRORS."""
    if isinstance(exc, httpx.TimeoutException | TimeoutError) and not isinstance(exc, httpx.ConnectTimeout):
        return APITimeoutError(f"{base_url} did not answer in time")
    return not_reachable(base_url, str(exc) or type(exc).__name__)


def is_unfinished_after(error: BaseException) -> bool:
    """True if the request may still run after `error`: the caller left or ran out of time, the server did not fail."""
    return not isinstance(error, APIError) or isinstance(error, APITimeoutError)


def raise_if_failed(result: Result) -> Result:
    """Return the result; raise its error if the request failed."""
    if result.status == "failed":
        raise from_envelope(vars(result.error) if result.error else None)
    return result


def all_answers(answers: Mapping[int, Any], batch: Mapping[str, Any], *, num: int) -> list[Any]:
    """Return a batch's answers in their order. Raises APIError if it ended without them."""
    if len(answers) < num:
        problems = (batch["errors"] or {"data": []})["data"]
        why = "; ".join(f"line {problem['line']}: {problem['message']}" for problem in problems[:3])
        raise APIError(f"the batch is {batch['status']} without answers{f': {why}' if why else ''}")
    return [answers[place] for place in range(num)]


def raise_unless_stream(response: httpx.Response) -> None:
    """Raise an APIError unless the body is an event stream."""
    content = b"" if response.status_code == 200 else response.content
    Answer(response.status_code, response.headers, content).raise_unless_stream()
