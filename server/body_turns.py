"""BodyTurns: the bodies of requests that one turn of the event loop handles. Knows their sizes alone."""

import asyncio
from collections import deque

# A schema of 64 KiB takes up to 20 ms until it is submitted. A small request takes 0.5 ms, so it counts as 2 KiB.
BYTES_PER_TURN = 64 * 2**10
LEAST_BYTES = 2 * 2**10


class BodyTurns:
    """Budget of body bytes that one turn of the event loop handles, so that a crowd of bodies never holds the loop.

    80 schemas of 64 KiB at once would hold every stream for 3 s. A larger body has a turn of its own.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._num_left = BYTES_PER_TURN
        self._is_counting = False

    async def wait(self, num_bytes: int) -> None:
        """Wait for a turn in which a body of this size can be handled. Bodies keep their order."""
        num_bytes = min(max(num_bytes, LEAST_BYTES), BYTES_PER_TURN)
        if not self._waiting and num_bytes <= self._num_left:
            self._take(num_bytes)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, turn))
        await turn

    def _take(self, num_bytes: int) -> None:
        self._num_left -= num_bytes
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._num_left, self._is_counting = BYTES_PER_TURN, False
        while self._waiting and self._waiting[0][0] <= self._num_left:
            num_bytes, turn = self._waiting.popleft()
            if not turn.done():  # a disconnect cancels the wait
                turn.set_result(None)
                self._take(num_bytes)
