"""Router: does what Turns plans. Starts and ends processes, and lets requests in."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from ....engine.errors import QueueFullError
from ....engine.language.workers.shares import Shares, sharer
from ...http.errors import NotReadyError
from ...process.exit import END_S
from ...server_settings import ServerSettings
from .catalog import Catalog, Entry
from .model_process import ModelProcess
from .turns import READY, UNLOADING, ModelTurn, Turns

logger = logging.getLogger(__name__)
_ASK_S = 0.25  # between questions about accepted work
_USAGE_ERROR = 2  # wrong setting or model that cannot be loaded: another start would end the same way
_REST_S = 5.0  # after such an end; requests for the model are refused meanwhile
_PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
_MOST_CRASHES = 5  # in a row, of a process that was never ready; then its requests fail
_MAX_WAITING_BYTES = 64 * 2**20  # bodies of requests that wait


class Router:
    """The models' processes, and the line before them. `clock` returns seconds."""

    def __init__(
        self,
        catalog: Catalog,
        folder: Path,
        settings: ServerSettings,
        turns: Turns,
        *,
        clock: Callable[[], float] = time.monotonic,
        new_process: Callable[[Entry, Path], ModelProcess] = ModelProcess,
    ) -> None:
        self.catalog = catalog
        self.turns = turns
        self.is_draining = False
        self._settings = settings
        self._folder = folder
        self._clock = clock
        self._new_process = new_process
        self._processes: dict[str, ModelProcess] = {}
        self._faults: dict[str, str] = {}  # models that could not be loaded, with the reasons
        self._num_crashes: dict[str, int] = {}
        self._tickets = itertools.count(1)
        self._admitted: dict[int, asyncio.Future[ModelProcess]] = {}
        self._waiting = Shares(settings.max_queue_size)
        self._waiting_bytes = Shares(_MAX_WAITING_BYTES)
        self._asked = set[str]()
        self._asking = set[str]()
        self._tasks = set[asyncio.Task[None]]()
        self._timer: asyncio.TimerHandle | None = None

    def process_of(self, name: str) -> ModelProcess | None:
        """Return the process of a model that is ready."""
        return self._processes.get(name) if self.turns.models[name].state == READY else None

    def fault_of(self, name: str) -> str | None:
        """Return why the model cannot be loaded, if the last try failed."""
        return self._faults.get(name)

    @contextlib.asynccontextmanager
    async def turn(self, name: str, *, num_bytes: int = 0, since: float | None = None) -> AsyncIterator[ModelProcess]:
        """Wait for the model's turn, and hold it for one request. `since`: time of its first arrival.

        Raises NotReadyError, QueueFullError.
        """
        owner = sharer()
        self._check(name, num_bytes, owner)
        ticket = next(self._tickets)
        admitted = self._admitted[ticket] = asyncio.get_running_loop().create_future()
        self._waiting.held[owner] += 1
        self._waiting_bytes.held[owner] += num_bytes
        try:
            self.turns.arrive(ticket, name, self.now() if since is None else since)
            self.step()
            try:
                process = await admitted
            finally:
                self._waiting.held[owner] -= 1
                self._waiting_bytes.held[owner] -= num_bytes
                del self._admitted[ticket]
            yield process
        finally:
            self.turns.leave(ticket, self.now())
            self.step()

    def now(self) -> float:
        """Return the clock's seconds."""
        return self._clock()

    def want(self, name: str) -> None:
        """Load the model in its turn."""
        self._faults.pop(name, None)
        self.turns.want(name, self.now())
        self.step()

    def dismiss(self, name: str) -> None:
        """Unload the model once it has no work."""
        self.turns.dismiss(name)
        self.step()

    def keep(self, name: str, seconds: float | None) -> None:
        """Set how long the model stays without work; None: until another one needs its place."""
        self.turns.models[name].idle_s = seconds
        self.step()

    def step(self) -> None:
        """Do what is planned now."""
        if self._timer is not None:
            self._timer.cancel()
        if self.is_draining:
            return
        now = self.now()
        plan = self.turns.plan(now)
        for ticket in plan.admit:
            self.turns.admit(ticket, now)
            if (admitted := self._admitted.get(ticket)) is not None and not admitted.done():
                admitted.set_result(self._processes[self.turns.name_of(ticket)])
        for name in plan.unload:
            self.turns.begin_unload(name, now)
            self._begin(self._processes[name].stop(self._end_s))
        for name in plan.load:
            self.turns.begin_load(name, now)
            self._begin(self._live(self.catalog.entries[name]))
        self._asked = set(plan.ask)
        for name in self._asked - self._asking:
            self._asking.add(name)
            self._begin(self._ask(name))
        if plan.wake_at < float("inf"):
            self._timer = asyncio.get_running_loop().call_later(max(0.0, plan.wake_at - now), self.step)

    async def drain(self) -> None:
        """Refuse what waits, let the servers finish what runs, and end them."""
        self.is_draining = True
        for admitted in self._admitted.values():
            if not admitted.done():
                admitted.set_exception(_draining())
        await asyncio.gather(*(process.stop(self._end_s) for process in self._processes.values()))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _end_s(self) -> float:
        return self._settings.drain_timeout + END_S

    def _check(self, name: str, num_bytes: int, owner: str) -> None:
        """Raise unless a request for this model may wait."""
        if self.is_draining:
            raise _draining()
        model = self.turns.models[name]
        if (fault := self._faults.get(name)) is not None and self.now() < model.not_before:
            raise NotReadyError(fault, code="failed")
        if self._waiting.room(owner) <= 0 or self._waiting_bytes.room(owner) < num_bytes:
            num_waiting = self._waiting.held[owner]
            text = f"{num_waiting} requests wait for their models (--max-queue-size, and 64 MiB); try later"
            raise QueueFullError(text, retry_after_s=max(1.0, model.load_s))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, name: str) -> None:
        """Ask a model about its jobs for as long as the plan depends on them."""
        try:
            while name in self._asked and (process := self.process_of(name)) is not None:
                model = self.turns.models[name]
                num_admitted = model.num_admitted
                num_jobs = await process.num_unfinished()
                if num_jobs is not None and model.state == READY and model.num_admitted == num_admitted:
                    self.turns.report_jobs(name, num_jobs, self.now())
                    self.step()
                if num_jobs != 0:
                    await asyncio.sleep(_ASK_S)
        finally:
            self._asking.discard(name)

    async def _live(self, entry: Entry) -> None:
        """Run one process of a model to its end."""
        name, process = entry.name, self._new_process(entry, self._folder)
        self._processes[name] = process
        model = self.turns.models[name]
        try:
            await process.start()
            if self.is_draining:
                await process.stop(self._end_s)
            await self._until_ready(name, process)
            reason = f"exit code {await process.wait()}"
        except OSError as exc:  # no memory or descriptors for a process
            reason = str(exc)
        finally:
            await process.close()
            del self._processes[name]
        self._note_end(model, reason)
        process.ended.set()
        self.step()

    async def _until_ready(self, name: str, process: ModelProcess) -> None:
        """Begin the model's turn when its server is ready, unless the process ends before."""
        ready, end = asyncio.ensure_future(process.until_ready()), asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait([ready, end], return_when=asyncio.FIRST_COMPLETED)
            if not end.done() and not self.is_draining:
                self._num_crashes.pop(name, None)
                self._faults.pop(name, None)
                self.turns.loaded(name, self.now())
                self.step()
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            if not end.done():
                end.cancel()

    def _note_end(self, model: ModelTurn, reason: str) -> None:
        """Free the place. A model that cannot be loaded fails its own requests."""
        name, state = model.name, model.state
        if state == UNLOADING or self.is_draining:
            self.turns.ended(name, self.now())
            return
        num_crashes = self._num_crashes[name] = self._num_crashes.get(name, 0) + 1
        pause_s = _PAUSES_S[min(num_crashes - 1, len(_PAUSES_S) - 1)]
        is_hopeless = state != READY and (reason == f"exit code {_USAGE_ERROR}" or num_crashes >= _MOST_CRASHES)
        logger.error("the process of %s has ended (%s)", name, reason)
        self.turns.ended(name, self.now(), pause_s=max(pause_s, _REST_S) if is_hopeless else pause_s)
        if is_hopeless:
            fault = self._faults[name] = f"model {name} cannot be loaded ({reason}); the server's log says why"
            for ticket in list(model.waiting):
                if (admitted := self._admitted.get(ticket)) is not None and not admitted.done():
                    admitted.set_exception(NotReadyError(fault, code="failed"))


def _draining() -> NotReadyError:
    return NotReadyError("the server is shutting down", code="draining")
