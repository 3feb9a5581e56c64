"""LoopBudget: work that one turn of the event loop handles. Knows costs alone.

RequestBudget lets few requests begin in one turn, so that probes are answered between them.
"""

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

from .connection import HAS_LEFT

# A schema of 64 KiB takes up to 20 ms until it is submitted. A small request takes 0.5 ms, so it counts as 2 KiB.
BYTES_PER_TURN = 64 * 2**10
LEAST_BYTES = 2 * 2**10
# A stream takes about 1.1 ms of the loop until its end. 500 clients that open and leave streams, load 4.4: /ready
# within 0.09 s at the 99th percentile, 0.27 s without a limit.
REQUESTS_PER_TURN = 8
PROBES = frozenset({"/health", "/ready"})


class LoopBudget:
    """Budget of work that one turn of the event loop handles, so that a crowd never holds the loop.

    80 schemas of 64 KiB at once would hold every stream for 3 s. Work that costs more has a turn of its own.
    """

    def __init__(self, budget: int, *, least: int = 1) -> None:
        """`least`: the least that any work costs."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._budget, self._least = budget, least
        self._num_left = budget
        self._is_counting = False

    async def wait(self, cost: int) -> None:
        """Wait for a turn in which work of this cost can be handled. Work keeps its order."""
        cost = min(max(cost, self._least), self._budget)
        if not self._waiting and cost <= self._num_left:
            self._take(cost)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((cost, turn))
        await turn

    def _take(self, cost: int) -> None:
        self._num_left -= cost
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._num_left, self._is_counting = self._budget, False
        while self._waiting and self._waiting[0][0] <= self._num_left:
            cost, turn = self._waiting.popleft()
            if not turn.done():  # a disconnect cancels the wait
                turn.set_result(None)
                self._take(cost)


class RequestBudget:
    """ASGI middleware that lets REQUESTS_PER_TURN requests begin in a turn, and drops those whose clients have left.

    Probes begin at once: a crowd of 500 clients would hold a probe for as long as 500 requests take, a few times over.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns = LoopBudget(REQUESTS_PER_TURN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PROBES:
            await self._turns.wait(1)
            if HAS_LEFT in scope:
                return
        await self._app(scope, receive, send)
