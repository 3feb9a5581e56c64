"""A passing fault changes no output, wherever in a step it strikes; a lasting fault costs its own row."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from splitfuse.engine import LLM, SamplingParams, StructuredOutputs
from splitfuse.engine.core.batch import Batch, BatchRow, Moves, RowOutput
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.step_pipeline import IsolatingRunner
from splitfuse.engine.execution.runner import pending_outputs, stages
from splitfuse.engine.execution.runner.model_runner import ModelRunner
from splitfuse.engine.execution.sampling import sampler
from splitfuse.engine.language.structured_output.grammar import Grammar


class FlakyRunner:
    """Runner that fails a number of times: for any batch, or for batches that hold a row."""

    def __init__(self, num_failures: int, culprit: str | None = None, *, error: Exception | None = None) -> None:
        self.sizes: list[int] = []
        self._error = error or MemoryError("for a moment")
        self._num_failures = num_failures
        self._culprit = culprit

    def move(self, moves: Moves) -> None: ...

    def run(self, batch: Batch) -> list[RowOutput]:
        self.sizes.append(len(batch.rows))
        is_hit = self._culprit is None or any(row.request.request_id == self._culprit for row in batch.rows)
        if is_hit and self._num_failures:
            self._num_failures -= 1
            raise self._error
        return [RowOutput((7,)) for _ in batch.rows]


def batch_of(*names: str) -> Batch:
    params: dict[str, Any] = {"params": SamplingParams(), "max_num_tokens": 9, "seed": 0}
    requests = [Request(request_id=name, prompt_token_ids=[1], **params) for name in names]
    return Batch(0, [BatchRow(request, 0, 1, True) for request in requests])


@pytest.mark.parametrize(
    ("names", "num_failures", "sizes", "failed"),
    [
        ("a", 1, [1, 1], ""),
        ("a", 2, [1, 1], "a"),
        ("ab", 3, [2, 1, 1, 1], "a"),
        ("abcd", 2, [4, 2, 1, 1, 2], ""),
        ("abcd", 3, [4, 2, 1, 1, 1, 2], ""),
    ],
)
def test_a_row_fails_when_it_has_failed_alone_twice(
    names: str, num_failures: int, sizes: list[int], failed: str
) -> None:
    runner = FlakyRunner(num_failures)
    outputs = IsolatingRunner(runner).run(batch_of(*names))
    assert runner.sizes == sizes
    assert "".join(name for name, output in zip(names, outputs, strict=True) if output.failure) == failed


def test_a_culprit_fails_alone_and_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    outputs = IsolatingRunner(FlakyRunner(1000, "c")).run(batch_of(*"abcd"))
    assert [output.failure is not None for output in outputs] == [False, False, True, False]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert outputs[2].failure is not None
    assert f"error id {outputs[2].failure.error_id}" in errors[0].getMessage()


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
    runner = FlakyRunner(1000, "c", error=RuntimeError(message))
    outputs = IsolatingRunner(runner).run(batch_of(*"abcd"))
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
    runner = FlakyRunner(1000, "a", error=RuntimeError(message))
    with pytest.raises(RuntimeError, match="CUDA"):
        IsolatingRunner(runner).run(batch_of(*"abcd"[:num_rows]))
    assert len(runner.sizes) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the GPU can no longer be used; the engine stops, restart the server"
    ]


# With the demo model: the first try of each step raises at a point where it has changed the most state.

LIST = {"type": "array", "items": {"type": "array", "items": {"type": "string"}}, "minItems": 2}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
    "sampled": {"seed": 3, "top_p": 0.9, "repetition_penalty": 1.2, "min_tokens": 5, "bad_words": ["the"]},
    "cut off": {"seed": 4, "structured_outputs": StructuredOutputs(json=LIST)},
    "complete": {"seed": 5, "structured_outputs": StructuredOutputs(regex="[a-z ]{5,15}!"), "logprobs": 0},
    "several": {"seed": 6, "n": 3, "structured_outputs": StructuredOutputs(choice=["a dog", "a cat", "no"])},
}
GROUPS = [*([name] for name in REQUESTS), list(REQUESTS)]  # alone (a step has one row), and all at once
PROMPT = "Here is a record as JSON:\n"


class Fault:
    """Fault that strikes once, and again after a step has succeeded."""

    def __init__(self) -> None:
        self.num_strikes = 0
        self._is_armed = True

    def after(self, right: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that it raises after its work, if the fault is armed."""

        def wrong(*args: Any, **more: Any) -> Any:
            outcome = right(*args, **more)
            if self._is_armed:
                self._is_armed = False
                self.num_strikes += 1
                raise MemoryError("for a moment")
            return outcome

        return wrong

    def armed_by(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a step so that its success arms the fault."""

        def arming(*args: Any) -> Any:
            outputs = run(*args)
            self._is_armed = True
            return outputs

        return arming


POINTS = {
    "the step": (ModelRunner, "run"),
    "sampling": (stages, "sample"),
    "the grammar": (Grammar, "take"),
    "catching up": (Grammar, "follow"),
    "logprobs": (sampler, "_logprobs"),
    "prompt logprobs": (pending_outputs, "prompt_logprobs"),
}


def ranks(logprobs: Any) -> list[Any]:
    return [entry and [(token_id, round(logprob, 3)) for token_id, logprob in entry.top] for entry in logprobs or ()]


def outputs_of(llm: LLM, names: list[str]) -> list[Any]:
    """Return ids, texts, ends and ranks; not logprobs, whose last digits may depend on the batch's size."""
    params = [SamplingParams(max_tokens=16, **REQUESTS[name]) for name in names]
    return [
        (output.token_ids, output.text, output.finish_reason, ranks(output.logprobs), ranks(result.prompt_logprobs))
        for result in llm.generate([PROMPT] * len(names), params)
        for output in result.outputs
    ]


@pytest.fixture(scope="module", params=[None, {"method": "ngram"}])
def demo(request: pytest.FixtureRequest) -> tuple[LLM, list[Any]]:
    """Demo model, and its outputs without a fault."""
    llm = LLM(dtype="float32", speculative_config=request.param, enable_prefix_caching=False)
    return llm, list(map(partial(outputs_of, llm), GROUPS))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("point", POINTS)
def test_a_try_that_fails_leaves_no_trace(
    demo: tuple[LLM, list[Any]], point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, expected = demo
    fault = Fault()
    owner, name = POINTS[point]
    monkeypatch.setattr(owner, name, fault.after(getattr(owner, name)))
    monkeypatch.setattr(ModelRunner, "run", fault.armed_by(ModelRunner.run))
    assert list(map(partial(outputs_of, llm), GROUPS)) == expected
    assert fault.num_strikes >= 2
