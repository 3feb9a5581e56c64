"""InputThreads: threads that render and tokenize prompts, and the amount of work on its way through them."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ...errors import QueueFullError, UnavailableError

_T = TypeVar("_T")

# Text of this length takes some 10 ms. Longer texts have a thread of their own, so that no shorter one waits for them;
# one at a time, since 1 MB takes 150 MB of memory while it is tokenized.
LONG_CHARS = 16 * 2**10
_NUM_SHORT_THREADS = 2
_CHARS_PER_S = 2**20  # lowest speed of a tokenizer


class InputThreads:
    """Thread pools for prompts. `num_requests` and `length` (characters or ids): the sums over work that is held."""

    def __init__(self, *, max_length: int, is_direct: bool = False) -> None:
        """`is_direct`: the caller's thread does all work itself."""
        self._max_length, self._is_direct = max_length, is_direct
        self._short = ThreadPoolExecutor(_NUM_SHORT_THREADS, thread_name_prefix="splitfuse-input")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="splitfuse-long-input")
        self._is_stopped = False
        self.num_requests = 0
        self.length = 0

    @contextlib.contextmanager
    def hold(self, *, num_requests: int, length: int) -> Iterator[None]:
        """Count work until the block ends. Raises QueueFullError if the sum is too long; alone, any length fits."""
        if self.length and self.length + length > self._max_length:
            retry_after_s = max(1.0, (self.length + length - self._max_length) / _CHARS_PER_S)
            raise QueueFullError(
                f"prompts of {self.length} characters are being tokenized and --max-queue-chars is {self._max_length}; "
                f"try again in {retry_after_s:.0f} s",
                retry_after_s=retry_after_s,
            )
        self.num_requests += num_requests
        self.length += length
        try:
            yield
        finally:
            self.num_requests -= num_requests
            self.length -= length

    async def run(self, work: Callable[[], _T], *, length: int) -> _T:
        """Run `work` in a thread and return its result. Raises its exceptions, and UnavailableError after `stop`."""
        self._check_running()
        if self._is_direct:
            return work()
        threads = self._long if length > LONG_CHARS else self._short
        return await asyncio.get_running_loop().run_in_executor(threads, self._run, work)

    def stop(self) -> None:
        """End the threads, and refuse the work that waits for one."""
        self._is_stopped = True
        self._short.shutdown(wait=False)
        self._long.shutdown(wait=False)

    def _run(self, work: Callable[[], _T]) -> _T:
        self._check_running()
        return work()

    def _check_running(self) -> None:
        if self._is_stopped:
            raise UnavailableError("the server is shutting down")
