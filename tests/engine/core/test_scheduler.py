"""The scheduler as a pure state machine: which tokens when, which requests wait or are preempted. No torch."""

import pytest
from scheduler_bench import TOKEN, Bench, request

from splitfuse.engine.core.batch import NO_OUTPUT, RowFailure, RowOutput
from splitfuse.engine.core.policies import BATCHING_POLICIES
from splitfuse.engine.core.request import Status


def test_the_seed_of_the_idea() -> None:
    bench = Bench.make(max_num_batched_tokens=512, long_prefill_token_threshold=128, block_size=16)
    long, short = request(500, name="long"), request(50, name="short")
    bench.add(long, short)
    assert bench.step() == [("long", 0, 128), ("short", 0, 50)]
    assert bench.step() == [("short", 50, 51), ("long", 128, 256)]
    assert bench.step() == [("short", 51, 52), ("long", 256, 384)]
    assert bench.step() == [("short", 52, 53), ("long", 384, 500)]
    assert bench.step() == [("long", 500, 501), ("short", 53, 54)]


def test_blocks_come_when_tokens_do() -> None:
    bench = Bench.make(block_size=4)
    one = request(10)
    bench.add(one)
    bench.step()
    assert len(one.block_table) == 3
    bench.step()
    bench.step()
    assert one.num_tokens == 13
    assert len(one.block_table) == 3
    bench.step()  # computes the 13th token
    assert len(one.block_table) == 4


def test_every_step_is_full_while_there_is_work() -> None:
    bench = Bench.make(max_num_batched_tokens=64, max_num_seqs=8)
    bench.add(*(request(100, 20, name=str(i)) for i in range(8)))
    bench.run()
    prompts_left = sum(batch.num_tokens - batch.num_decode_tokens > 0 for batch in bench.batches)
    assert all(batch.num_tokens == 64 for batch in bench.batches[: prompts_left - 1])


def test_equal_passes_would_delay_the_prompt_that_comes_next() -> None:
    """A prompt of 80 tokens, and after its first step one of 40: FastGen's equal passes of 40 cost a further step."""
    num_steps = {}
    for chunk in (0, 40):  # 0: as much as fits
        bench = Bench.make(max_num_batched_tokens=64, long_prefill_token_threshold=chunk, block_size=4)
        prompts = [request(80, 1, name="first"), request(40, 1, name="next")]
        bench.add(prompts[0])
        bench.step()
        bench.add(prompts[1])
        ended = [prompts[0].is_finished, prompts[1].is_finished]
        steps = [1, 1]
        while not all(ended):
            bench.step()
            steps = [number + (not has_ended) for number, has_ended in zip(steps, ended, strict=True)]
            ended = [prompt.is_finished for prompt in prompts]
        num_steps[chunk] = steps
    assert num_steps == {0: [2, 2], 40: [2, 3]}


def test_decodes_never_wait_for_prompts() -> None:
    bench = Bench.make(max_num_batched_tokens=16)
    bench.add(request(4, 50, name="decoding"))
    bench.step()
    bench.add(request(400, 2, name="long"))
    for _ in range(20):
        assert ("decoding", bench.scheduler.running[0].num_computed_tokens) in [
            (n, start) for n, start, _ in bench.step()
        ]


def test_fcfs_does_not_let_a_small_request_overtake() -> None:
    bench = Bench.make(num_blocks=10, max_num_batched_tokens=100)
    bench.add(request(24, name="first"), request(30, name="big"), request(1, name="small"))
    bench.step()
    assert [r.request_id for r in bench.scheduler.running] == ["first"]
    assert [r.request_id for r in bench.scheduler.waiting] == ["big", "small"]


def test_priority_goes_first_and_is_the_last_to_give_way() -> None:
    bench = Bench.make(scheduling_policy="priority", max_num_seqs=1)
    bench.add(request(4, name="later", priority=5), request(4, name="sooner", priority=-5))
    assert bench.step() == [("sooner", 0, 4)]


def test_the_latest_is_preempted_keeps_its_place_and_is_recomputed() -> None:
    bench = Bench.make(num_blocks=6, max_num_batched_tokens=100)
    first, second, third = (request(8, 12, name=name) for name in ("first", "second", "third"))
    bench.add(first, second, third)
    bench.step()
    assert [r.request_id for r in bench.scheduler.running] == ["first", "second", "third"]
    bench.step()
    assert third.status is Status.PREEMPTED
    assert not third.block_table
    assert third.num_tokens == 9
    assert bench.scheduler.waiting == [third]
    bench.run()
    assert third.num_preemptions > 0
    assert all(r.finish_reason == "length" and r.num_output_tokens == 12 for r in (first, second, third))
    assert first.num_preemptions == 0


def test_a_waiting_request_is_admitted_only_with_its_whole_prompt_and_what_others_were_promised() -> None:
    bench = Bench.make(num_blocks=20, max_num_batched_tokens=8)
    bench.add(request(60, name="promised"), request(40, name="waiting"))
    for _ in range(4):
        bench.step()
    assert [r.request_id for r in bench.scheduler.running] == ["promised"]


def test_stop_token_length_and_min_tokens() -> None:
    bench = Bench.make()
    stops, goes_on = request(3, 5, name="stops", stop=frozenset({TOKEN})), request(3, 5, name="goes on")
    bench.add(stops, goes_on)
    bench.run()
    assert (stops.finish_reason, stops.num_output_tokens) == ("stop", 1)
    assert (goes_on.finish_reason, goes_on.num_output_tokens) == ("length", 5)


@pytest.mark.parametrize("state", ["waiting", "running", "in flight"])
def test_finish_frees_blocks_at_once_or_with_the_step_in_flight(state: str) -> None:
    bench = Bench.make()
    one = request(10)
    bench.add(one)
    if state == "waiting":
        assert bench.scheduler.finish(one, reason="abort", now=1.0)
    elif state == "running":
        bench.step()
        assert bench.scheduler.finish(one, reason="abort", now=1.0)
    else:
        batch = bench.scheduler.schedule(1.0)
        assert batch is not None
        assert bench.scheduler.finish(one, reason="abort", now=1.0)
        assert one.block_table, "the step in flight still writes there"
        assert not bench.scheduler.update(batch, [RowOutput((TOKEN,))], 2.0)
        assert one.num_output_tokens == 0
    assert one.finish_reason == "abort"
    assert not one.block_table
    assert not bench.scheduler.finish(one, reason="error", now=3.0)
    assert one.finish_reason == "abort"
    bench.scheduler.check()
    assert not bench.scheduler.has_work


def test_a_failed_row_ends_its_request_alone() -> None:
    bench = Bench.make()
    good, bad = request(5, name="good"), request(5, name="bad")
    bench.add(good, bad)
    batch = bench.scheduler.schedule(1.0)
    assert batch is not None
    bench.scheduler.update(batch, [RowOutput((TOKEN,)), RowOutput(failure=RowFailure("boom"))], 1.0)
    bench.scheduler.check()
    assert bad.finish_reason == "error"
    bench.run()
    assert good.finish_reason == "length"


def test_blocks_of_a_failed_row_are_forgotten_though_its_request_was_aborted_meanwhile() -> None:
    bench = Bench.make(enable_prefix_caching=True)
    text = list(range(1, 15))
    bench.add(request(0, 1, tokens=text))
    bench.run()
    reader, again = request(0, name="reader", tokens=text), request(0, name="again", tokens=text)
    bench.add(reader)
    batch = bench.scheduler.schedule(1.0)
    assert batch is not None
    assert reader.num_cached_tokens == 12
    bench.scheduler.finish(reader, reason="abort", now=1.0)
    bench.scheduler.update(batch, [RowOutput(failure=RowFailure("not finite"))], 1.0)
    assert reader.finish_reason == "abort"
    bench.add(again)
    bench.step()
    assert again.num_cached_tokens == 0


def test_progress_with_a_pool_for_one() -> None:
    """The first in the queue is never preempted by another, so each request ends in turn."""
    bench = Bench.make(num_blocks=10, block_size=4, max_num_batched_tokens=64)
    crowd = [request(8, 32, name=str(i)) for i in range(12)]
    bench.add(*crowd)
    bench.run()
    assert all(r.num_output_tokens == 32 for r in crowd)
    assert crowd[0].num_preemptions == 0


# What each policy does with one request decoding (d) and prompts of 30 and 50 tokens coming, budget 40.
SHAPES = {
    "splitfuse": [[("d", 1), ("p30", 30), ("p50", 9)], [("d", 1), ("p30", 1), ("p50", 38)], [("p30", 1), ("p50", 3)]],
    "prefill_first": [[("p30", 30)], [("p50", 50)], [("d", 1), ("p30", 1), ("p50", 1)]],
    "decode_first": [[("d", 1)], [("d", 1)], [("p30", 30), ("p50", 10)], [("p30", 1)], [("p30", 1)], [("p50", 40)]],
    "static": [[("d", 1)], [("d", 1)], [("p30", 30)], [("p50", 50)], [("p30", 1), ("p50", 1)]],
}


@pytest.mark.parametrize("policy", sorted(BATCHING_POLICIES))
def test_policies_share_a_step_as_they_say(policy: str) -> None:
    bench = Bench.make(batching_policy=policy, max_num_batched_tokens=40)
    bench.add(request(4, 4, name="d"))
    bench.step()
    bench.step()  # a static batch is closed by its first decode
    bench.add(request(30, 3, name="p30"), request(50, 3, name="p50"))
    for expected in SHAPES[policy]:
        assert [(name, end - start) for name, start, end in bench.step()] == expected
    bench.run()


def test_deadlines_end_a_request_with_what_there_is() -> None:
    bench = Bench.make(max_num_seqs=1)
    slow = request(4, 50, name="slow", timeout_ms=5000)
    queued = request(4, 50, name="queued", max_queue_ms=2000)
    patient = request(4, 3, name="patient", max_queue_ms=60_000)
    bench.add(slow, queued, patient)
    ended: list[tuple[float, str]] = []
    while bench.scheduler.has_work:
        ended += [(bench.now, r.request_id) for r in bench.scheduler.expire(bench.now)]
        bench.step()
    assert ended == [(2.0, "queued"), (5.0, "slow")]
    assert slow.finish_reason == queued.finish_reason == "timeout"
    assert slow.num_output_tokens == 5
    assert patient.finish_reason == "length"
    bench.assert_empty()


def test_a_far_deadline_keeps_no_finished_request() -> None:
    bench = Bench.make()
    for _ in range(300):
        bench.add(request(4, 1, timeout_ms=86_400_000, max_queue_ms=86_400_000))
        bench.scheduler.expire(bench.now)
        bench.run()
    slow = request(4, 50, timeout_ms=5000)
    slow.arrival_time = bench.now
    bench.add(slow)
    assert len(bench.scheduler._deadlines._heap) < 100
    bench.scheduler.expire(bench.now + 6)
    assert slow.finish_reason == "timeout"


def test_a_thousand_aborts_at_once_take_one_step() -> None:
    bench = Bench.make(max_num_seqs=200, num_blocks=4000)
    crowd = [request(8, 8, name=str(i)) for i in range(1000)]
    bench.add(*crowd)
    batch = bench.scheduler.schedule(1.0)
    assert batch is not None
    for member in crowd:
        bench.scheduler.finish(member, reason="abort", now=1.0)
    bench.scheduler.update(batch, [RowOutput((TOKEN,)) if row.needs_sampling else NO_OUTPUT for row in batch.rows], 2.0)
    assert not bench.scheduler.has_work
    bench.assert_empty()
