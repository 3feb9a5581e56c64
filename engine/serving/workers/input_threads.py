"""InputThreads: the threads in which prompts are rendered and tokenized, and how much is on its way through them."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ...errors import QueueFullError, UnavailableError

_T = TypeVar("_T")

# So much text takes some 10 ms. What is longer has a thread of its own, so nothing shorter waits for it; one at a time,
# since 1 MB takes 150 MB of memory while it is tokenized.
LONG_CHARS = 16 * 2**10
_NUM_SHORT_THREADS = 2
_CHARS_PER_S = 2**20  # at worst


class InputThreads:
    """`num_requests` and `length`, in characters or ids, are of what is held."""

    def __init__(self, *, max_length: int) -> None:
        self._max_length = max_length
        self._short = ThreadPoolExecutor(_NUM_SHORT_THREADS, thread_name_prefix="splitfuse-input")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="splitfuse-long-input")
        self._is_stopped = False
        self.num_requests = 0
        self.length = 0

    @contextlib.contextmanager
    def hold(self, *, num_requests: int, length: int) -> Iterator[None]:
        """Count these meanwhile. Raises QueueFullError if they are too long together; alone, any length is taken."""
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
        """What `work` returns, done in a thread. Raises what it raises, and UnavailableError after `stop`."""
        self._check_running()
        threads = self._long if length > LONG_CHARS else self._short
        return await asyncio.get_running_loop().run_in_executor(threads, self._run, work)

    def stop(self) -> None:
        """End the threads; what waits for one is refused."""
        self._is_stopped = True
        self._short.shutdown(wait=False)
        self._long.shutdown(wait=False)

    def _run(self, work: Callable[[], _T]) -> _T:
        self._check_running()
        return work()

    def _check_running(self) -> None:
        if self._is_stopped:
            raise UnavailableError("the server is shutting down")
