"""Replica: keeps one server running behind HAProxy, restarting it whenever it ends, until the replica is stopped."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from ....engine.errors import ConfigError
from .haproxy import Haproxy
from .placement import Address, Placement, PlacementLostError, RunningServer, name_of

logger = logging.getLogger(__name__)

_USAGE_ERROR = 2  # wrong setting or model that cannot be loaded: a restart would end the same way
_LIVED_S = 60.0  # lifetime after which a server is restarted at once
_LONGEST_PAUSE_S = 30.0


class Replica:
    """One replica with its successive servers. `number` counts from 0; `config` is the text of its config file.

    `clock` returns seconds.
    """

    def __init__(
        self,
        number: int,
        config: str,
        *,
        placement: Placement,
        haproxy: Haproxy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name_of(number)
        self.address: Address | None = None
        self._number = number
        self._config = config
        self._placement = placement
        self._haproxy = haproxy
        self._clock = clock
        self._server: RunningServer | None = None
        self._num_starts = 0
        self._num_short_lives = 0
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Keep a server running until `stop`. Raises ConfigError if the first server cannot start."""
        while not self._stopping.is_set():
            begin = self._clock()
            reason = await self._live()
            if not self._stopping.is_set():
                pause = self._pause(self._clock() - begin)
                logger.error("replica %s has ended (%s); it is started again in %g s", self.name, reason, pause)
                await self._pass(pause)
        await self._haproxy.remove(self.name)

    async def stop(self) -> None:
        """Drain and end the server; `run` then returns."""
        self._stopping.set()
        if self._server is not None:
            await self._server.stop()

    async def _live(self) -> str:
        """Run one server to its end. Returns the reason for the end."""
        try:
            server = await self._start()
        except (OSError, PlacementLostError) as exc:
            return f"it could not be started: {exc}"
        if server is None:
            return "it is to stop"
        self._num_starts += 1
        self._server, self.address = server, server.address
        try:
            await self._haproxy.point(self.name, server.address)
            if self._stopping.is_set():  # `stop` was called during the start
                await server.stop()
            code = await server.wait()
        except PlacementLostError as exc:
            return str(exc)
        finally:
            self._server = self.address = None
            await server.close()
        if code == _USAGE_ERROR and self._num_starts == 1 and not self._stopping.is_set():
            raise ConfigError(f"replica {self.name} could not start; its output above says why")
        return f"exit code {code}"

    async def _start(self) -> RunningServer | None:
        """Start a server. Returns None if `stop` came while it waited for a machine.

        Raises OSError, PlacementLostError.
        """
        starting = asyncio.ensure_future(self._placement.start(self._number, self._config))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return None

    def _pause(self, lived_s: float) -> float:
        """Return the seconds until the next start: 0 after a long life, else longer each time."""
        self._num_short_lives = 0 if lived_s >= _LIVED_S else self._num_short_lives + 1
        return min(2.0 ** (self._num_short_lives - 1), _LONGEST_PAUSE_S) if self._num_short_lives else 0.0

    async def _pass(self, seconds: float) -> None:
        """Wait this long, or until `stop`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
