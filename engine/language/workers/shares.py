"""Shares of keys in what all of them use together: a greedy key leaves as much to the next key as it holds.

A task knows the key of its request, so that no function between a route and a limit has to pass it on.
"""

import asyncio
from collections import Counter, deque
from contextvars import ContextVar

_SHARER: ContextVar[str] = ContextVar("splitfuse.sharer", default="")


def note_sharer(owner: str) -> None:
    """Note the key that this task works for; "" on a server whose limits nobody shares."""
    _SHARER.set(owner)


def sharer() -> str:
    """Return the key that this task works for, of several; "" if there is one share."""
    return _SHARER.get()


def most_of(limit: int, *, num_own: int, num_all: int, is_divided: bool) -> int:
    """Return the most that a key may hold of `limit`: on a server of several keys, half of what the others leave.

    So n greedy keys hold 1/(n+1) each, and the next key finds as much free.
    """
    return max(0, limit - (num_all - num_own)) // 2 if is_divided else limit


class Shares:
    """Amounts that keys hold of a limit, by key. The holder changes `held`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = Counter[str]()

    def room(self, owner: str) -> int:
        """Return how much more a `sharer` may hold; less than 0 if it holds too much."""
        num_all = self.held.total()
        num_own = self.held[owner] if owner else num_all
        return most_of(self.limit, num_own=num_own, num_all=num_all, is_divided=bool(owner)) - num_own


class Turns:
    """Places that keys take by turns. Whoever holds the fewest is next, and no key holds all."""

    def __init__(self, num_places: int, *, is_divided: bool) -> None:
        self._num_places = num_places
        self._is_divided = is_divided
        self._held = Counter[str]()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, owner: str) -> None:
        """Wait for a place. Cancelling the wait takes none."""
        if owner not in self._waiting and self._may_take(owner):
            self._held[owner] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(owner)
            raise

    def leave(self, owner: str) -> None:
        """Give a place back, to the next key that waits."""
        self._held[owner] -= 1
        if owner in self._waiting:
            self._waiting[owner] = self._waiting.pop(owner)  # behind all others
        while owners := [name for name in self._waiting if self._may_take(name)]:
            next_owner = min(owners, key=self._held.__getitem__)
            turns = self._waiting.pop(next_owner)
            turn = turns.popleft()
            if turns:
                self._waiting[next_owner] = turns  # behind all others
            if not turn.done():
                self._held[next_owner] += 1
                turn.set_result(None)
        self._held += Counter()  # forgets keys that hold none

    def _may_take(self, owner: str) -> bool:
        num_own, num_all = self._held[owner], self._held.total()
        most = most_of(self._num_places, num_own=num_own, num_all=num_all, is_divided=self._is_divided)
        return num_all < self._num_places and num_own < max(1, most)
