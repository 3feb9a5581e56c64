"""Retry policy: the time of a call, the number of its retries, and the backoffs between them."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from .errors import APIConnectionError, APIError, APITimeoutError

RETRIED_STATUSES = frozenset({429, 503})


@dataclass(frozen=True)
class RetryPolicy:
    """Limits of every call of a client; `begin()` starts the clock of a call."""

    timeout: float | None = 60.0
    max_retries: int = 5
    first_backoff_s: float = 0.25  # doubles with each retry
    max_backoff_s: float = 8.0
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random  # spreads clients that were refused together

    def begin(self) -> "Deadline":
        """Return the deadline of a call that starts now."""
        return Deadline(self, self.clock())


@dataclass(frozen=True)
class Deadline:
    """Deadline of one call."""

    policy: RetryPolicy
    began: float = field(repr=False)

    def elapsed(self) -> float:
        """Return the seconds since the call began."""
        return self.policy.clock() - self.began

    def seconds_left(self, *, at_most: float | None = None) -> float | None:
        """Return the seconds left, at most `at_most`; None is no limit. Raises APITimeoutError if none are left."""
        if self.policy.timeout is None:
            return at_most
        left = self.policy.timeout - self.elapsed()
        if left <= 0:
            raise APITimeoutError(f"not finished within {self.policy.timeout:g} s; give the client a longer timeout")
        return left if at_most is None else min(left, at_most)

    def backoff(self, error: APIError, *, num_failures: int) -> float:
        """Return the seconds to sleep before the next retry, or raise `error` if no retry is left."""
        policy = self.policy
        is_transient = isinstance(error, APIConnectionError) or error.status in RETRIED_STATUSES
        if not is_transient or num_failures > policy.max_retries:
            raise error
        backoff: float = min(policy.first_backoff_s * 2.0 ** (num_failures - 1), policy.max_backoff_s)
        backoff = max(backoff * (0.5 + policy.jitter() / 2), error.retry_after or 0.0)
        if policy.timeout is not None and self.elapsed() + backoff >= policy.timeout:
            raise error
        return backoff


def read_retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Return a Retry-After header (seconds or an HTTP date) in seconds from now; None if absent or unreadable."""
    if header is None:
        return None
    try:
        return max(0.0, float(header)) if header.strip().isdecimal() else _seconds_until(header, now)
    except ValueError:
        return None


def _seconds_until(date: str, now: datetime | None) -> float:
    when = parsedate_to_datetime(date)
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())
