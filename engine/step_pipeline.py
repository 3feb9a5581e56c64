"""Turns: in which order steps are decided, computed and booked. One turn decides a step, gives it to the device, takes
the results of a step from it, and books these; PlainTurns of the same step, OverlappedTurns of the one before.

`begin` and `end` belong to the thread of the EngineCore, `run` may be called in another in between.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from .batch import Batch, Moves, RunResult
from .core import EngineCore, StepOutput
from .scheduler.async_scheduler import reads_tokens

_log = logging.getLogger("splitfuse.engine")


class Pending(Protocol):
    """The results of a step that has been given to the device."""

    def wait(self) -> list[RunResult]:
        """One result per row, when they have come. Raises what went wrong."""
        ...


class Launcher(Protocol):
    """Gives work to a device and does not wait for it. Work is done in the order in which it was given."""

    def move(self, moves: Moves) -> None:
        """Have blocks copied."""
        ...

    def launch(self, batch: Batch) -> Pending:
        """Have a step computed. A row may go one token beyond what its request knows: the one drawn for it last."""
        ...

    @property
    def has_chore(self) -> bool:
        """Whether there is something to do while there are no steps."""
        ...

    def do_chore(self) -> None:
        """A piece of it."""
        ...


@dataclass(eq=False, slots=True)
class Flight:
    """A step that has been decided and not been booked."""

    batch: Batch
    start: float  # when it was decided
    to_run: Batch  # without moves that have been made
    pending: Pending | None = None  # None: not on the device; it runs alone when it is collected


class Turn(NamedTuple):
    """What `run` is to do: launch a step, then wait for the results of one, which may be the same."""

    launched: Flight | None
    collected: Flight | None


class Turns(Protocol):
    """Drives an EngineCore."""

    @property
    def is_busy(self) -> bool:
        """Whether a step is under way, which wants to be taken to its end even if no request is left."""
        ...

    def begin(self) -> Turn | None:
        """Decide what is next; None if there is nothing to do."""
        ...

    def run(self, turn: Turn) -> list[RunResult]:
        """Compute."""
        ...

    def end(self, turn: Turn, results: Sequence[RunResult]) -> StepOutput | None:
        """Book what came of it; None if nothing was collected."""
        ...

    @property
    def has_chore(self) -> bool:
        """Whether there is something to do while nothing is under way."""
        ...

    def do_chore(self) -> None:
        """A piece of it; in the thread of `run`."""
        ...


class PlainTurns:
    """Each step is decided when the results of the one before are known."""

    has_chore = False

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self.is_busy = False

    def begin(self) -> Turn | None:
        scheduled = self._core.schedule()
        if scheduled is None:
            return None
        self.is_busy = True
        flight = Flight(*scheduled, to_run=scheduled[0])
        return Turn(flight, flight)

    def run(self, turn: Turn) -> list[RunResult]:
        assert turn.collected is not None
        return self._core.execute(turn.collected.batch)

    def end(self, turn: Turn, results: Sequence[RunResult]) -> StepOutput | None:
        assert turn.collected is not None
        self.is_busy = False
        return self._core.update(turn.collected.batch, list(results), turn.collected.start)

    def do_chore(self) -> None:
        pass


class OverlappedTurns:
    """Each step is decided and launched while the one before runs. Its core has an OverlappedScheduler.

    A step with rows that read tokens is run alone, as PlainTurns does it. So is one that failed to launch or whose
    results failed to come, and every step that was launched behind it: EngineCore finds out whose fault it was.
    """

    def __init__(self, core: EngineCore, launcher: Launcher) -> None:
        self._core = core
        self._launcher = launcher
        self._flights: deque[Flight] = deque()  # oldest first
        self._last_end = float("-inf")

    @property
    def is_busy(self) -> bool:
        return bool(self._flights)

    def begin(self) -> Turn | None:
        head = self._flights[0] if self._flights else None
        if head is not None and head.pending is None:
            return Turn(None, head)
        scheduled = self._core.schedule()
        if scheduled is None:
            return None if head is None else Turn(None, head)
        batch, start = scheduled
        flight = Flight(batch, start, to_run=batch)
        self._flights.append(flight)
        runs_alone = not batch.rows or any(reads_tokens(row.request) for row in batch.rows)
        return Turn(None, flight) if runs_alone else Turn(flight, head)

    def run(self, turn: Turn) -> list[RunResult]:
        if turn.launched is not None:
            self._launch(turn.launched)
        return [] if turn.collected is None else self._collect(turn.collected)

    def _launch(self, flight: Flight) -> None:
        if any(flight.batch.moves):
            self._launcher.move(flight.batch.moves)
            flight.to_run = flight.batch.subset(flight.batch.rows)
        try:
            flight.pending = self._launcher.launch(flight.batch)
        except Exception as exc:
            _log.warning("a step with %d rows failed to start (%s)", len(flight.batch.rows), type(exc).__name__)

    def _collect(self, flight: Flight) -> list[RunResult]:
        if flight.pending is not None:
            try:
                return flight.pending.wait()
            except Exception as exc:
                _log.warning("a step with %d rows failed (%s)", len(flight.batch.rows), type(exc).__name__)
                for behind in self._flights:  # they were given tokens that never came
                    behind.pending = None
        return self._run_alone(flight)

    def _run_alone(self, flight: Flight) -> list[RunResult]:
        """Only for who is still there: one that has ended meanwhile may not even have all the tokens of its row."""
        rows = [row for row in flight.batch.rows if not row.request.is_finished]
        results = self._core.execute(replace(flight.to_run, rows=rows))
        by_request = dict(zip((row.request for row in rows), results, strict=True))
        return [by_request.get(row.request) for row in flight.batch.rows]

    def end(self, turn: Turn, results: Sequence[RunResult]) -> StepOutput | None:
        flight = turn.collected
        if flight is None:
            return None
        assert flight is self._flights[0], "steps end in the order in which they began"
        self._flights.popleft()
        # It began when the one before it ended: until then the device was busy with that.
        output = self._core.update(flight.batch, list(results), max(flight.start, self._last_end))
        assert output.stats is not None
        self._last_end = output.stats.time
        return output

    @property
    def has_chore(self) -> bool:
        return self._launcher.has_chore

    def do_chore(self) -> None:
        self._launcher.do_chore()


def take_turn(core: EngineCore, turns: Turns) -> StepOutput:
    """One whole turn in this thread."""
    expired = core.expire()
    turn = turns.begin()
    output = None if turn is None else turns.end(turn, turns.run(turn))
    return StepOutput(expired + (output.deltas if output else []), output.stats if output else None)
