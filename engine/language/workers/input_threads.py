"""InputThreads: threads that render and tokenize prompts, and the amount of work on its way through them.

Keys take threads by turns, and each has its share of the characters.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ...errors import QueueFullError, UnavailableError
from .shares import Shares, Turns, sharer

_T = TypeVar("_T")

# Text of this length takes some 10 ms. Longer texts have a thread of their own, so that no shorter one waits for them;
# one at a time, since 1 MB takes 150 MB of memory while it is tokenized.
LONG_CHARS = 16 * 2**10
_NUM_SHORT_THREADS = 2
_CHARS_PER_S = 2**20  # lowest speed of a tokenizer


class InputThreads:
    """Thread pools for prompts. `requests`: how many each key has on their way."""

    def __init__(self, *, max_length: int, is_direct: bool = False) -> None:
        """`is_direct`: the caller's thread does all work itself."""
        self._is_direct = is_direct
        self._short = ThreadPoolExecutor(_NUM_SHORT_THREADS, thread_name_prefix="splitfuse-input")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="splitfuse-long-input")
        # Some wait within a pool, so that no thread waits for the loop: a key's turn comes after 80 ms at most.
        self._short_turns = Turns(8 * _NUM_SHORT_THREADS, is_divided=False)
        self._long_turns = Turns(1, is_divided=False)
        self._is_stopped = False
        self.requests = Counter[str]()
        self._lengths = Shares(max_length)  # characters, or ids

    @property
    def num_requests(self) -> int:
        """Number of requests whose work is held."""
        return self.requests.total()

    @property
    def length(self) -> int:
        """Characters of all work that is held."""
        return self._lengths.held.total()

    @contextlib.contextmanager
    def hold(self, *, num_requests: int, length: int) -> Iterator[None]:
        """Count work until the block ends. Raises QueueFullError if a key's sum is too long; alone, any length fits."""
        owner, lengths = sharer(), self._lengths
        held = lengths.held[owner] if owner else self.length
        if held and (num_over := length - lengths.room(owner)) > 0:
            retry_after_s = max(1.0, num_over / _CHARS_PER_S)
            raise QueueFullError(
                f"prompts of {held} characters are being tokenized and --max-queue-chars is {lengths.limit}"
                f"{', of which others have a share' if owner else ''}; try again in {retry_after_s:.0f} s",
                retry_after_s=retry_after_s,
            )
        self.requests[owner] += num_requests
        lengths.held[owner] += length
        try:
            yield
        finally:
            self.requests[owner] -= num_requests
            lengths.held[owner] -= length

    async def run(self, work: Callable[[], _T], *, length: int) -> _T:
        """Run `work` in a thread and return its result. Raises its exceptions, and UnavailableError after `stop`."""
        self._check_running()
        if self._is_direct:
            return work()
        is_long, owner = length > LONG_CHARS, sharer()
        threads, turns = (self._long, self._long_turns) if is_long else (self._short, self._short_turns)
        await turns.take(owner)
        try:
            self._check_running()
            return await asyncio.get_running_loop().run_in_executor(threads, self._run, work)
        finally:
            turns.leave(owner)

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
