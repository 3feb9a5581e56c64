"""Histories: seconds that add up, and the scheduler's own reasons, over random lives and case by case."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from recorded_life import Life
from scheduler_bench import Bench, request

from splitfuse.engine.core.request import Request
from splitfuse.engine.extras.inspection.history import MAX_EVENTS, Event, History

Line = Mapping[str, Any]


def history_of(request: Request) -> History:
    history = request.metrics().history
    assert history is not None
    return history


@pytest.mark.parametrize("seed", range(20))
def test_what_a_request_waited_for_is_what_the_recording_says(seed: int) -> None:
    """Compare every step of a recorded life, for every request that waits after it."""
    life = Life(seed, busy_steps=60)
    lines = [json.loads(line) for line in life.run().splitlines()]
    by_number = {sequence.arrival_order: sequence for sequence in life.requests}
    passed = "fairness" if life.config.scheduling_policy == "fair" else "priority"
    num_compared = 0
    for line, waiting, computed in decisions(lines):
        stops = {by_number[stop[0]].is_background: stop for stop in line.get("stopped_at", ())}
        for number in waiting:
            sequence = by_number[number]
            if sequence.finished_time == line["start"]:
                continue  # ended right after this decision
            why = waits_at(history_of(sequence), line["start"] - sequence.arrival_time)
            if why == "parent":
                assert sequence.parent is not None
                assert computed.get(sequence.parent.arrival_order, 0) < sequence.num_prompt_tokens
            elif why is not None:
                first, reason, _ = stops[sequence.is_background]
                expected = passed if first > number and reason != "policy" else reason
                assert why == expected, (line, number)
                num_compared += 1
    assert num_compared


def decisions(lines: Sequence[Line]) -> Iterator[tuple[Line, set[int], dict[int, int]]]:
    """Yield each step, the requests that wait after it, and their computed tokens before it."""
    waiting: set[int] = set()
    computed: dict[int, int] = {}
    for line in lines:
        if "add" in line:
            waiting.add(line["add"])
        elif "finish" in line:
            waiting.discard(line["finish"])
        elif line.get("step") is not None:
            waiting = (waiting | set(line.get("preempted", ()))) - set(line.get("admitted", ()))
            computed |= dict.fromkeys(line.get("preempted", ()), 0)
            yield line, set(waiting), dict(computed)
            computed |= {number: start + num_tokens for number, start, num_tokens in line.get("rows", ())}


def waits_at(history: History, time: float) -> str | None:
    """Return the reason of the wait at this time; None if the events do not hold it, or there was no wait."""
    why = None
    for event in history.events:
        if event.time > time + 1e-6:
            break
        why = event.why if event.what == "waits" else None
    return None if history.num_more and why is None else why


@pytest.mark.parametrize("seed", range(20))
def test_where_admission_stopped_is_borne_out_by_the_step(seed: int) -> None:
    """Compare with the facts of a recorded step, not with the code that decided it."""
    life = Life(seed, busy_steps=60)
    lines = [json.loads(line) for line in life.run().splitlines()]
    config, prompts = life.config, {line["add"]: line for line in lines if "add" in line}
    for line in lines:
        for number, reason, missing in line.get("stopped_at", ()):
            rows, budget = line.get("rows", []), line.get("budget") or config.max_num_batched_tokens
            budget = min(budget, config.max_num_batched_tokens)
            if reason == "sequences":
                assert line.get("running", 0) >= config.max_num_seqs or line.get("preempted")
            elif reason == "blocks":
                assert missing > 0
            elif reason == "preemption":
                assert line["preempted"]
            elif reason == "budget":
                wanted = len(prompts[number]["prompt"]) if config.enable_prefix_caching else prompts[number]["prompt"]
                left = budget - sum(row[2] for row in rows)
                is_whole = config.batching_policy in ("prefill_first", "static")
                is_background = prompts[number].get("background")
                assert left <= 0 or is_background or (is_whole and wanted > left)
            elif reason == "policy":
                assert config.batching_policy != "splitfuse"
            elif reason == "tenant":
                assert config.scheduling_policy == "fair"
            else:
                assert reason == "interactive"
                assert prompts[number]["background"]


def test_lives_wait_for_everything() -> None:
    """Check that these things happen in the tests above, which prove nothing otherwise."""
    reasons = ("budget", "sequences", "blocks", "policy", "interactive", "parent", "fairness", "priority")
    missing = {f"queue.{reason}" for reason in reasons} | {"preempted.preemption", "recompute", "paused.policy"}
    for seed in range(40):
        life = Life(seed, busy_steps=60)
        life.run()
        for sequence in life.requests:
            missing -= history_of(sequence).seconds.keys()
        if not missing:
            return
    raise AssertionError(missing)


def test_a_request_that_lacks_blocks_says_how_many() -> None:
    bench = Bench.make(num_blocks=4, block_size=4, max_num_seqs=4, enable_prefix_caching=False)
    first, second = request(12, 3), request(8, 3)
    bench.add(first, second)
    bench.step()
    history = bench.scheduler.observer.so_far(second, 100.0)
    assert [(event.what, event.why, event.numbers) for event in history.events] == [("waits", "blocks", (1,))]


def test_a_swap_tells_both_prices() -> None:
    bench = Bench.make(num_blocks=4, num_host_blocks=8, block_size=4, max_num_seqs=4, enable_prefix_caching=False)
    bench.scheduler.costs.seconds_per_block, bench.scheduler.costs.seconds_per_token = 0.25, 1.0
    first, second = request(4, 12), request(4, 12)
    bench.add(first, second)
    while not second.num_preemptions:
        bench.step()
    (event,) = (entry for entry in bench.scheduler.observer.so_far(second, 100.0).events if entry.what == "preempted")
    num_tokens, swap, recompute = event.numbers
    assert (event.why, swap, recompute) == ("swap", 2 * -(-num_tokens // 4) * 0.25, num_tokens * 1.0)


def test_events_are_bounded_and_seconds_are_not_lost() -> None:
    bench = Bench.make(num_blocks=400, block_size=4, max_num_batched_tokens=4, enable_prefix_caching=False)
    long = request(4 * (MAX_EVENTS + 20), 1)
    bench.add(long)
    while not long.is_finished:
        bench.step()
    history = history_of(long)
    assert (len(history.events), history.num_more) == (MAX_EVENTS, 21)
    assert long.finished_time is not None
    assert sum(history.seconds.values()) == pytest.approx(long.finished_time - long.arrival_time)


def test_a_history_survives_json() -> None:
    history = History((Event(0.5, "chunk", "", (0, 4, 0, 0)),), {"prefill": 1.0}, 2, 0.25)
    assert History.read(json.loads(json.dumps(history))) == history
