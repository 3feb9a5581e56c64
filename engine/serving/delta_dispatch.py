"""DeltaDispatch: hands each delta to the sink of its request, and each end of an output to the observers."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..core.outputs import OutputDelta, RequestMetrics, StepStats
from ..core.request import Request
from ..errors import ConstraintError, EngineDeadError, new_error_id
from .guarded_hook import guarded

_log = logging.getLogger("splitfuse.engine")

DeltaSink = Callable[[OutputDelta], None]

# After so many failed requests in a row the engine asks itself: they may all be of one adapter or one tenant.
_MAX_FAILURES_IN_A_ROW = 10


class EngineObserver:
    """Receiver of the engine's figures. Called on the event loop; must be quick. This base class does nothing."""

    def on_step(self, stats: StepStats) -> None:
        """Receive the figures of a step."""

    def on_output_finished(self, metrics: RequestMetrics, finish_reason: str) -> None:
        """Receive the figures of an output that has ended."""


class DeltaDispatch:
    """Sinks of the unfinished requests. Sinks and observers are the caller's code: if one fails, no other notices."""

    def __init__(self, on_end: Callable[[], None], *, on_failures: Callable[[], None] | None) -> None:
        """`on_end` is called at the end of each output, `on_failures` after ten failures in a row."""
        self.is_failing = False  # True from a failure of the engine's own request until a request succeeds
        self.observers: list[Any] = []
        self._on_end, self._on_failures = on_end, on_failures
        self._sinks: dict[str, DeltaSink] = {}
        self._outputs_left: dict[str, set[int]] = {}
        self._num_failures_in_a_row = 0

    def add(self, requests: list[Request], sink: DeltaSink) -> None:
        """Note the sink of a request's outputs."""
        self._sinks[requests[0].request_id] = sink
        self._outputs_left[requests[0].request_id] = {request.index for request in requests}

    def forget(self, request_id: str) -> None:
        """Drop the sink of a request that was refused after all."""
        self._sinks.pop(request_id, None)
        self._outputs_left.pop(request_id, None)

    def send(self, deltas: Iterable[OutputDelta]) -> None:
        """Deliver deltas, in order."""
        for delta in deltas:
            try:
                self._sinks[delta.request_id](delta)
            except Exception:
                _log.exception("the sink of request %s failed", delta.request_id)
            if delta.finish_reason is not None:
                self._end_output(delta)

    def observe(self, observer: object) -> None:
        """Send figures to an EngineObserver from now on."""
        self.observers.append(guarded(observer, EngineObserver()))

    def send_stats(self, stats: StepStats) -> None:
        """Deliver the figures of a step."""
        for observer in self.observers:
            observer.on_step(stats)

    def fail_all(self) -> None:
        """End every output with an EngineDeadError."""
        error_id = new_error_id()
        _log.error("requests failed with the loop, error id %s", error_id)
        error = EngineDeadError(f"the engine died (error id {error_id})", error_id=error_id)
        nothing = RequestMetrics(time.monotonic(), None, None, time.monotonic(), 0, 0, 0, 0)
        for request_id, indexes in list(self._outputs_left.items()):
            self.send(
                OutputDelta(request_id, index, "", (), finish_reason="error", metrics=nothing, error=error)
                for index in sorted(indexes)
            )

    def _end_output(self, delta: OutputDelta) -> None:
        assert delta.finish_reason is not None
        assert delta.metrics is not None
        self._on_end()
        self._count_failures(delta)
        for observer in self.observers:
            observer.on_output_finished(delta.metrics, delta.finish_reason)
        self._outputs_left[delta.request_id].discard(delta.index)
        if not self._outputs_left[delta.request_id]:
            del self._outputs_left[delta.request_id], self._sinks[delta.request_id]

    def _count_failures(self, delta: OutputDelta) -> None:
        if delta.finish_reason in ("stop", "length"):
            self._num_failures_in_a_row, self.is_failing = 0, False
        elif delta.finish_reason == "error" and delta.index == 0 and not isinstance(delta.error, ConstraintError):
            self._num_failures_in_a_row += 1
            if self._on_failures is not None and self._num_failures_in_a_row % _MAX_FAILURES_IN_A_ROW == 0:
                self._on_failures()
