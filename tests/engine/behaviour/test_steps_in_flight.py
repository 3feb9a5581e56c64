"""Decisions made while a step runs: requests that go on, requests that wait, the cost of an end."""

from typing import Any

import pytest

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, Batch, RowFailure, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.core.scheduler import Scheduler

END = 9


class Bench:
    """Scheduler with requests."""

    def __init__(self, num_blocks: int = 100, **settings: Any) -> None:
        config = ResolvedConfig.of(
            EngineConfig(**{"block_size": 4, "max_num_batched_tokens": 32, **settings}), device="cpu"
        )
        blocks = BlockManager(CacheSpec(num_blocks, config.block_size), prefix_caching=config.enable_prefix_caching)
        self.scheduler = Scheduler(config, blocks, max_steps_in_flight=2)
        self.blocks = self.scheduler.blocks.device

    def add(self, prompt: list[int], *, max_tokens: int = 8, parent: Request | None = None, **params: Any) -> Request:
        request = Request(
            request_id=str(prompt), prompt_token_ids=prompt, params=SamplingParams(max_tokens=max_tokens, **params),
            max_num_tokens=len(prompt) + max_tokens, seed=0, stop_token_ids=frozenset([END]), parent=parent,
        )  # fmt: skip
        self.scheduler.add(request)
        return request

    def schedule(self) -> Batch:
        batch = self.scheduler.schedule(0.0)
        self.scheduler.check()
        assert batch is not None
        return batch

    def update(self, batch: Batch, *results: int | RowFailure | None) -> list[Any]:
        outputs = [
            RowOutput((result,)) if isinstance(result, int) else RowOutput(failure=result) if result else NO_OUTPUT
            for result in results
        ]
        progress = self.scheduler.update(batch, outputs, 1.0)
        self.scheduler.check()
        return [(item.request, token_id) for item in progress for token_id in item.output.token_ids]


def rows(batch: Batch | None) -> list[tuple[Request, int, int, bool]]:
    assert batch is not None
    return [(row.request, row.start, row.num_tokens, row.needs_sampling) for row in batch.rows]


def test_a_step_is_decided_before_the_token_that_it_computes_is_known() -> None:
    bench = Bench()
    request = bench.add([1, 2, 3])
    first, second = bench.schedule(), bench.schedule()
    assert rows(first) == [(request, 0, 3, True)]
    assert rows(second) == [(request, 3, 1, True)]
    assert request.token_ids == [1, 2, 3], "only what is known stands in it"
    assert (request.num_computed_tokens, request.num_output_placeholders) == (4, 2), "what is in flight is counted"
    assert bench.update(first, 5) == [(request, 5)]
    assert rows(bench.schedule()) == [(request, 4, 1, True)]
    assert bench.update(second, 6) == [(request, 6)]
    assert request.token_ids == [1, 2, 3, 5, 6]


def test_chunks_of_a_prompt_follow_each_other() -> None:
    bench = Bench(max_num_batched_tokens=4)
    request = bench.add(list(range(10, 20)))
    first, second = bench.schedule(), bench.schedule()
    assert rows(first) + rows(second) == [(request, 0, 4, False), (request, 4, 4, False)]
    assert bench.update(first, None) == []
    assert rows(bench.schedule()) == [(request, 8, 2, True)]


def test_an_end_found_late_costs_one_row_and_keeps_its_blocks_for_it() -> None:
    bench = Bench(enable_prefix_caching=False)
    ends, goes_on = bench.add([1, 2, 3, 4]), bench.add([5, 6])
    first, second = bench.schedule(), bench.schedule()
    assert bench.update(first, END, 7) == [(ends, END), (goes_on, 7)]
    assert ends.finish_reason == "stop"
    assert bench.blocks.num_used_blocks == 3, "its row in the step in flight has a block"
    third = bench.schedule()
    assert [row.request for row in third.rows] == [goes_on]
    assert bench.update(second, 8, 8) == [(goes_on, 8)], "the row after the end is dropped"
    assert bench.blocks.num_used_blocks == 1
    assert ends.token_ids == [1, 2, 3, 4, END]


def test_a_length_is_known_before_and_costs_nothing() -> None:
    bench = Bench()
    short, long = bench.add([1, 2], max_tokens=2), bench.add([3, 4])
    first, second = bench.schedule(), bench.schedule()
    bench.update(first, 7, 7)
    assert rows(bench.schedule()) == [(long, 3, 1, True)]
    bench.update(second, 8, 8)
    assert short.finish_reason == "length"


def test_who_comes_takes_the_place_of_who_reaches_its_length() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add([1, 2], max_tokens=1)
    comes = bench.add([3, 4])
    bench.schedule()
    assert rows(bench.schedule()) == [(comes, 0, 2, True)]


def test_an_abort_is_heard_at_once_and_frees_blocks_when_its_steps_have_ended() -> None:
    bench = Bench()
    request = bench.add([1, 2, 3])
    first, second = bench.schedule(), bench.schedule()
    assert bench.scheduler.finish(request, reason="abort", now=0.0)
    bench.scheduler.check()
    assert bench.update(first, 5) == []
    assert bench.blocks.num_used_blocks == 1
    assert bench.update(second, 5) == []
    assert bench.blocks.num_used_blocks == 0
    assert request.token_ids == [1, 2, 3]


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": 0.1}, {"logprobs": 0},
        {"logit_bias": {3: 1.0}}, {"allowed_token_ids": [3]}, {"min_tokens": 4},
    ],
)  # fmt: skip
def test_no_sampling_field_waits_for_the_tokens_before(params: dict[str, Any]) -> None:
    bench = Bench()
    plain = bench.add([1, 2])
    first = bench.schedule()
    other = bench.add([3, 4], **params)
    second = bench.schedule()
    assert [row.request for row in second.rows] == [plain, other]
    bench.update(first, 5)
    third = bench.schedule()
    assert rows(third) == [(plain, 3, 1, True), (other, 2, 1, True)], "their tokens are in flight"
    assert not any(batch.needs_host for batch in (first, second, third))


def test_prompt_logprobs_wait_as_long_as_there_are_some_to_compute() -> None:
    bench = Bench()
    plain = bench.add([1, 2])
    first = bench.schedule()
    reads = bench.add([3, 4], prompt_logprobs=0)
    assert bench.scheduler.schedule(0.0) is None
    bench.update(first, 5)
    second = bench.schedule()
    assert [row.request for row in second.rows] == [plain, reads]
    assert second.needs_host
    assert bench.scheduler.schedule(0.0) is None
    bench.update(second, 5, 5)
    third = bench.schedule()
    assert not third.needs_host
    assert rows(bench.schedule())[1] == (reads, 3, 1, True), "its second token is in flight"
    bench.update(third, 5, 5)
