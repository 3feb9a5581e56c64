"""Background requests: they get what interactive ones leave, under every policy."""

import random
from typing import Any

import pytest
from scheduler_bench import Bench, request

from splitfuse.engine.core.plan import Pace
from splitfuse.engine.core.policies import BATCHING_POLICIES, QUEUE_ORDERS
from splitfuse.engine.core.request import Request, Status

EVERY_POLICY = [(batching, scheduling) for batching in BATCHING_POLICIES for scheduling in QUEUE_ORDERS]
every_policy = pytest.mark.parametrize(("batching", "scheduling"), EVERY_POLICY)


def is_interactive(row: tuple[str, int, int]) -> bool:
    return row[0].startswith("i")


class Twins:
    """Two schedulers with equal interactive requests; one of them has background requests, too."""

    def __init__(self, **settings: Any) -> None:
        self.alone, self.beside = Bench.make(**settings), Bench.make(**settings)
        self.both: list[tuple[Request, Request]] = []
        self.background: list[Request] = []

    def add(self, num_prompt: int, num_new: int, **fields: Any) -> None:
        name = f"i{len(self.both)}"
        pair = (request(num_prompt, num_new, name=name, **fields), request(num_prompt, num_new, name=name, **fields))
        self.both.append(pair)
        self.alone.add(pair[0])
        self.beside.add(pair[1])

    def add_background(self, num_prompt: int, num_new: int, **fields: Any) -> None:
        name = f"b{len(self.background)}"
        self.background.append(request(num_prompt, num_new, name=name, is_background=True, **fields))
        self.beside.add(self.background[-1])


@every_policy
@pytest.mark.parametrize("seed", range(2))
def test_interactive_requests_get_what_they_would_have_got_alone(batching: str, scheduling: str, seed: int) -> None:
    rng = random.Random(seed)
    twins = Twins(
        max_num_batched_tokens=rng.randint(8, 60),
        max_num_seqs=64,
        batching_policy=batching,
        scheduling_policy=scheduling,
    )
    tenants = ["ann", "ben"]
    for _ in range(80):
        if rng.random() < 0.2:
            twins.add(rng.randint(1, 60), rng.randint(1, 20), priority=rng.randint(-1, 1), tenant=rng.choice(tenants))
        if rng.random() < 0.2:
            twins.add_background(rng.randint(1, 60), rng.randint(1, 20), priority=-9, tenant=rng.choice(tenants))
        alone, beside = twins.alone.step(), twins.beside.step()
        assert [row for row in beside if is_interactive(row)] == alone
    while twins.beside.scheduler.has_work:
        twins.beside.step()
    assert all(request.is_finished for request in twins.background)


@every_policy
@pytest.mark.parametrize("seed", range(2))
def test_with_a_small_pool_they_wait_for_preemptions_only(batching: str, scheduling: str, seed: int) -> None:
    rng = random.Random(seed)
    settings: dict[str, Any] = {"num_blocks": 40, "num_host_blocks": rng.choice([0, 60]), "max_num_seqs": 6}
    if settings["num_host_blocks"]:
        settings |= {"swap_space": 1.0, "preemption_mode": "swap"}
    twins = Twins(
        max_num_batched_tokens=32,
        batching_policy=batching,
        scheduling_policy=scheduling,
        enable_prefix_caching=seed % 2 == 0,
        **settings,
    )
    steps: dict[bool, int] = {}
    for _ in range(60):
        if rng.random() < 0.25:
            twins.add(rng.randint(1, 40), rng.randint(1, 20))
        if rng.random() < 0.5:
            twins.add_background(rng.randint(1, 40), rng.randint(1, 40))
        twins.alone.step()
        twins.beside.step()
        assert not [b for _, b in twins.both if b.num_preemptions and b.status is Status.PREEMPTED] or all(
            request.status is not Status.RUNNING for request in twins.background
        ), "an interactive request is preempted while one in the background runs"
    for which, bench in ((False, twins.alone), (True, twins.beside)):
        steps[which] = 0
        while not all(pair[which].is_finished for pair in twins.both):
            bench.step()
            steps[which] += 1
    assert steps[True] <= steps[False] + 8
    while twins.beside.scheduler.has_work:
        twins.beside.step()
    assert all(request.is_finished for request in twins.background)


def test_a_seat_is_made_for_an_interactive_request() -> None:
    bench = Bench.make(max_num_seqs=2, max_num_batched_tokens=16)
    bench.add(request(4, name="b0", is_background=True), request(4, name="b1", is_background=True))
    assert bench.step() == [("b0", 0, 4), ("b1", 0, 4)]
    bench.add(request(4, name="i0"))
    assert bench.step() == [("b0", 4, 5)]
    assert bench.step() == [("b0", 5, 6), ("i0", 0, 4)]


def test_beside_interactive_requests_they_get_no_more_than_their_budget() -> None:
    bench = Bench.make(max_num_batched_tokens=64)
    bench.add(request(4, name="i0"), *(request(10, name=f"b{i}", is_background=True) for i in range(3)))
    batch = bench.scheduler.schedule(0.0, pace=Pace(background_budget=12))
    assert batch is not None
    assert sorted((row.request.request_id, row.num_tokens) for row in batch.rows) == [("b0", 10), ("b1", 2), ("i0", 4)]


def test_alone_they_have_the_whole_budget() -> None:
    bench = Bench.make(max_num_batched_tokens=64)
    bench.add(*(request(10, name=f"b{i}", is_background=True) for i in range(3)))
    batch = bench.scheduler.schedule(0.0, pace=Pace(background_budget=1))
    assert batch is not None
    assert batch.num_tokens == 30


def test_blocks_are_freed_for_an_interactive_request() -> None:
    bench = Bench.make(num_blocks=10, max_num_batched_tokens=64)
    background = [request(16, 16, name=f"b{i}", is_background=True) for i in range(2)]
    bench.add(*background)
    assert bench.step() == [("b0", 0, 16), ("b1", 0, 16)]
    bench.add(request(20, name="i0"))
    bench.step()
    assert [request.status for request in background] == [Status.RUNNING, Status.PREEMPTED]
    assert ("i0", 0, 20) in bench.step()


def test_none_is_admitted_while_an_interactive_request_waits() -> None:
    bench = Bench.make(num_blocks=10, max_num_batched_tokens=64)
    bench.add(request(20, 2, name="i0"), request(24, 1, name="i1"), request(4, 1, name="b0", is_background=True))
    assert bench.step() == [("i0", 0, 20)]
    assert bench.step() == [("i0", 20, 21)]
    assert bench.step() == [("i1", 0, 24), ("b0", 0, 4)]
