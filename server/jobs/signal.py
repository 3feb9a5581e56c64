"""Signal wakes tasks that wait for a change, a Latch is set once, TimedWaits waits for a signal again and again.

Each wait of TimedWaits has a limit.
"""

import asyncio
from typing import Protocol


class Waiter(Protocol):
    """Receiver of one call of `set_result`, unless it is done. A future is one."""

    def done(self) -> bool: ...

    def set_result(self, result: bool, /) -> None: ...


class Signal:
    """Wake-up call for the tasks that wait at the moment it fires. A signal remembers nothing."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: set[Waiter] | tuple[()] = ()  # no set while nobody waits: thousands are kept

    def fire(self) -> None:
        """Wake all that wait now."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(True)

    async def wait(self) -> bool:
        """Wait for the next `fire`."""
        return await self.wait_by(asyncio.get_running_loop().create_future())

    async def wait_by(self, waiter: "asyncio.Future[bool]", *, woken: Waiter | None = None) -> bool:
        """Wait with a future of the caller's. Returns its result: true at `fire`, or what the caller sets before.

        With `woken` the signal wakes that, again and again, and the future has a result once the caller sets one.
        """
        woken = waiter if woken is None else woken
        waiters = self._waiters = self._waiters or set()
        waiters.add(woken)
        try:
            return await waiter
        finally:
            waiters.discard(woken)
            if not waiters and self._waiters is waiters:
                self._waiters = ()


class Latch:
    """Event that is never cleared. An asyncio.Event takes 760 bytes, and 10,000 kept jobs have two each."""

    __slots__ = ("_changed", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._changed = Signal()

    def is_set(self) -> bool:
        """True after `set`."""
        return self._is_set

    def set(self) -> None:
        """Wake all that wait, and let nobody wait from now on."""
        self._is_set = True
        self._changed.fire()

    async def wait(self) -> None:
        """Return once the latch is set."""
        if not self._is_set:
            await self._changed.wait()


class TimedWaits:
    """Waits of one task for a signal, one after the other, each for `seconds` at most.

    One timer serves all waits and is set again only when it goes off: a stream waits once for each token, and a timer
    for each wait took a twelfth of the server's work for a token.
    """

    def __init__(self, signal: Signal, seconds: float) -> None:
        self._signal, self._seconds = signal, seconds
        self._began = 0.0
        self.waiter: asyncio.Future[bool] | None = None  # the running wait's
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, *, woken: Waiter | None = None) -> bool:
        """Wait for the next `fire`, or for a result of `waiter` if another is `woken`; False if the time ran out."""
        loop = asyncio.get_running_loop()
        self._began, self.waiter = loop.time(), loop.create_future()
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look, loop)
        return await self._signal.wait_by(self.waiter, woken=woken)

    def restart(self, now: float) -> None:
        """Let the time of the wait that runs begin now, in the loop's time."""
        self._began = now

    def close(self) -> None:
        """Cancel the timer: no more waits follow."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End a wait that has lasted long enough, or come back when it will have."""
        self._timer, due = None, self._began + self._seconds
        if self.waiter is None or self.waiter.done():
            return
        if loop.time() >= due:
            self.waiter.set_result(False)
        else:
            self._timer = loop.call_at(due, self._look, loop)
