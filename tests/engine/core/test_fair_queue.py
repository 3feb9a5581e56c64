"""Tenants share by tokens served: the loud one does not starve the quiet one, a pause saves nothing up."""

from collections import Counter

from scheduler_bench import request

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.fair_queue import TokenCounters
from splitfuse.engine.core.request import Request, Status
from splitfuse.engine.core.scheduler import Scheduler


def make(tenant: str, num_prompt: int = 20, num_new: int = 10) -> Request:
    return request(num_prompt, num_new, tenant=tenant)


def scheduler(policy: str = "fair", weights: dict[str, float] | None = None) -> Scheduler:
    config = ResolvedConfig.of(
        EngineConfig(scheduling_policy=policy, max_num_seqs=4, max_num_batched_tokens=32, tenant_weights=weights),
        device="cpu",
    )
    return Scheduler(config, BlockManager(CacheSpec(400, 4), prefix_caching=False))


def run(scheduler: Scheduler, steps: int, served: dict[str, int]) -> None:
    for step in range(steps):
        batch = scheduler.schedule(float(step))
        if batch is None:
            return
        for row in batch.rows:
            tenant = row.request.tenant
            served[tenant] = served.get(tenant, 0) + row.num_tokens
        scheduler.update(
            batch, [RowOutput((7,)) if row.needs_sampling else NO_OUTPUT for row in batch.rows], float(step)
        )
        scheduler.check()


def test_a_loud_tenant_does_not_starve_a_quiet_one() -> None:
    for policy, share in (("fcfs", 0.0), ("fair", 0.45)):
        one = scheduler(policy)
        for _ in range(99):
            one.add(make("loud"))
        for _ in range(30):
            one.add(make("quiet"))
        served: dict[str, int] = {}
        run(one, 60, served)
        assert served.get("quiet", 0) >= share * sum(served.values())
        assert policy == "fair" or "quiet" not in served


def test_a_pause_saves_nothing_up() -> None:
    one = scheduler()
    for _ in range(60):
        one.add(make("steady"))
    run(one, 50, {})
    for _ in range(60):
        one.add(make("back"))
    served: dict[str, int] = {}
    run(one, 40, served)
    assert served["steady"] > 0.3 * served["back"]


def test_a_counter_dropped_while_its_tenant_ran_is_not_missed_when_it_is_preempted() -> None:
    counters = TokenCounters(max_tenants=1)
    preempted, again, stranger = make("ran"), make("ran"), make("stranger")
    counters.joined("ran", [])
    counters.admitted(preempted, 0)
    counters.joined("stranger", [])  # drops the other's: nothing of it waits
    preempted.status = Status.PREEMPTED
    counters.joined("ran", [preempted, stranger])
    counters.joined("third", [preempted, stranger, again])
    stranger.arrival_order, again.arrival_order = 1, 2
    assert list(counters.order([preempted, stranger, again])) == [preempted, stranger, again]


def crowd(*tenants: str, num_seqs: int = 4, weights: dict[str, float] | None = None) -> Scheduler:
    """Return a scheduler with twice as many long requests of each tenant as can run, each queued after a step."""
    one = scheduler(weights=weights)
    for tenant in tenants:
        for _ in range(2 * num_seqs):
            one.add(make(tenant, num_prompt=4, num_new=400))
        run(one, 1, {})
    return one


def num_running(one: Scheduler) -> Counter[str]:
    return Counter(request.tenant for request in one.running)


def test_a_tenant_with_every_place_gives_one_up_within_three_steps() -> None:
    one = crowd("greedy")
    run(one, 20, {})
    assert num_running(one) == {"greedy": 4}
    quick = make("quick", num_new=1)
    one.add(quick)
    latest = one.running[-1]
    run(one, 3, {})
    assert quick.is_finished
    assert latest.status is Status.PREEMPTED


def test_places_are_shared_by_weight_and_nobody_takes_turns() -> None:
    for weights, expected in ((None, {"a": 2, "b": 2}), ({"b": 3.0}, {"a": 1, "b": 3})):
        one = crowd("a", "b", weights=weights)
        run(one, 12, {})
        assert num_running(one) == expected
        num_preemptions = one.num_preemptions
        run(one, 300, {})
        assert num_running(one) == expected
        assert one.num_preemptions == num_preemptions == expected["b"]


def test_a_place_stays_closed_to_the_tenant_that_gave_it_up() -> None:
    """Short requests one after the other cost a preemption in 16 steps, not each of them."""
    one = crowd("greedy")
    run(one, 8, {})
    for _ in range(16):
        one.add(quick := make("quick", num_prompt=4, num_new=1))
        run(one, 3, {})
        assert quick.is_finished
    assert 1 <= one.num_preemptions <= 3
    run(one, 60, {})
    assert num_running(one)["greedy"] == 4


def test_more_tenants_than_seats_wait_for_an_end() -> None:
    one = crowd("a", "b", "c", "d", "e")
    run(one, 20, {})
    assert sorted(num_running(one).values()) == [1, 1, 1, 1]
    num_preemptions = one.num_preemptions
    run(one, 200, {})
    assert one.num_preemptions == num_preemptions
