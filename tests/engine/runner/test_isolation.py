"""Which failures cost a row, and which the engine."""

from collections.abc import Iterator
from typing import Any

import pytest

from splitfuse.engine.batch import Batch, BatchRow, Moves, RowOutput
from splitfuse.engine.request import Request
from splitfuse.engine.runner.isolation import IsolatingRunner
from splitfuse.engine.sampling_params import SamplingParams


class FailingRunner:
    """Fails with this, if the request of that id is among the rows."""

    def __init__(self, error: Exception, *, request_id: str) -> None:
        self.num_runs = 0
        self._error, self._request_id = error, request_id

    def move(self, moves: Moves) -> None:
        pass

    def run(self, batch: Batch) -> list[RowOutput]:
        self.num_runs += 1
        if any(row.request.request_id == self._request_id for row in batch.rows):
            raise self._error
        return [RowOutput((1,)) for _ in batch.rows]


def rows(count: int) -> Iterator[BatchRow]:
    fields: dict[str, Any] = {"prompt_token_ids": [5], "params": SamplingParams(), "seed": 0, "max_num_tokens": 9}
    for number in range(count):
        yield BatchRow(Request(request_id=str(number), **fields), 0, 1, True)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: invalid configuration argument",
        "Triton Error [CUDA]: out of memory",
    ],
)
def test_a_call_that_is_refused_costs_the_row_at_fault(message: str) -> None:
    runner = FailingRunner(RuntimeError(message), request_id="2")
    outputs = IsolatingRunner(runner).run(Batch(0, list(rows(4))))
    assert [output.failure is None for output in outputs] == [True, True, False, True]


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`",
    ],
)
@pytest.mark.parametrize("num_rows", [1, 4])
def test_a_lost_device_ends_the_engine_at_once(message: str, num_rows: int, caplog: pytest.LogCaptureFixture) -> None:
    runner = FailingRunner(RuntimeError(message), request_id="0")
    with pytest.raises(RuntimeError, match="CUDA"):
        IsolatingRunner(runner).run(Batch(0, list(rows(num_rows))))
    assert runner.num_runs == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the GPU can no longer be used; the engine stops, restart the server"
    ]
