"""IsolatingRunner: runs a batch synchronously; if that raises, it bisects the batch, so that only the faulty row fails.

A row fails when it has failed alone twice: some faults pass, such as a moment without memory. A failed try leaves no
trace: rows write the same cache slots again, noise is keyed by seed and position, and a grammar rolls back to the
tokens of its request.
"""

import logging
from collections.abc import Callable

from ..errors import FAILED_ON_REQUEST, RankLostError, is_device_lost, is_out_of_memory, new_error_id
from .batch import Batch, RowFailure, RowOutput
from .ports import Runner
from .request import Request

_log = logging.getLogger("splitfuse.engine")


class IsolatingRunner:
    """Runner that fails rows instead of steps. `draft` fills in the drafts of a batch that plans some."""

    def __init__(self, runner: Runner, draft: Callable[[Batch], Batch] | None = None) -> None:
        self._runner = runner
        self._draft = draft

    def run(self, batch: Batch) -> list[RowOutput]:
        """Return one output per row.

        A failure to move blocks leaves the cache in an unknown state: it is raised. So is the loss of the device.
        """
        if any(batch.moves):
            self._runner.move(batch.moves)
        if not batch.rows:
            return []
        if self._draft is None or not (batch.needs_host and any(row.num_drafts for row in batch.rows)):
            return self._run_isolated(batch)
        # There may be fewer drafts than planned, which changes the order of the rows.
        drafted = self._draft(batch)
        outputs = dict(zip((row.request for row in drafted.rows), self._run_isolated(drafted), strict=True))
        return [outputs[row.request] for row in batch.rows]

    def _run_isolated(self, batch: Batch, *, is_last_try: bool = False) -> list[RowOutput]:
        try:
            return self._runner.run(batch)
        except Exception as exc:
            if is_lost := is_device_lost(exc):
                _log.error("the GPU can no longer be used; the engine stops, restart the server")
            if is_lost or isinstance(exc, RankLostError):
                raise
            if is_last_try:
                return [RowOutput(failure=_failure(batch.rows[0].request, exc))]
            _log.warning("a step with %d rows failed (%s); trying again", len(batch.rows), _described(exc))
        if len(batch.rows) == 1:
            return self._run_isolated(batch, is_last_try=True)
        middle = len(batch.rows) // 2
        halves = batch.rows[:middle], batch.rows[middle:]
        return [output for rows in halves for output in self._run_isolated(batch.subset(rows))]


def _described(exc: Exception) -> str:
    way_out = "out of memory: lower --gpu-memory-utilization, --max-num-batched-tokens or --max-num-seqs"
    return way_out if is_out_of_memory(exc) else type(exc).__name__


def _failure(request: Request, exc: Exception) -> RowFailure:
    error_id = new_error_id()
    _log.error("request %s failed, error id %s", request.request_id, error_id, exc_info=exc)
    return RowFailure(FAILED_ON_REQUEST, error_id)
