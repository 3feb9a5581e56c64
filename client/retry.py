"""How long one call may take and how often it tries: the deadline, the retries, the pauses between them."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .errors import APIConnectionError, APIError, APITimeoutError

RETRIED_STATUSES = frozenset({429, 503})


@dataclass(frozen=True)
class Patience:
    """What a caller allows every call; `begin()` starts the clock of one."""

    timeout: float | None = 60.0
    max_retries: int = 5
    first_pause: float = 0.25  # doubles with each retry
    longest_pause: float = 8.0
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random  # spreads clients that were turned away together

    def begin(self) -> "Deadline":
        """The deadline of a call that starts now."""
        return Deadline(self, self.clock())


@dataclass(frozen=True)
class Deadline:
    """One call's time."""

    patience: Patience
    began: float = field(repr=False)

    def elapsed(self) -> float:
        """Seconds since the call began."""
        return self.patience.clock() - self.began

    def left(self, at_most: float | None = None) -> float | None:
        """Seconds left, `at_most` so many; None means without limit. Raises APITimeoutError where none is left."""
        if self.patience.timeout is None:
            return at_most
        left = self.patience.timeout - self.elapsed()
        if left <= 0:
            raise APITimeoutError(f"not finished within {self.patience.timeout:g} s; give the client a longer timeout")
        return left if at_most is None else min(left, at_most)

    def pause_after(self, error: APIError, *, num_failures: int) -> float:
        """Seconds to sleep before the next try; raises `error` where there is to be none."""
        patience = self.patience
        is_passing = isinstance(error, APIConnectionError) or error.status in RETRIED_STATUSES
        if not is_passing or num_failures > patience.max_retries:
            raise error
        pause: float = min(patience.first_pause * 2.0 ** (num_failures - 1), patience.longest_pause)
        pause = max(pause * (0.5 + patience.chance() / 2), error.retry_after or 0.0)
        if patience.timeout is not None and self.elapsed() + pause >= patience.timeout:
            raise error
        return pause
