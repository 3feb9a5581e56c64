"""The scheduler as a pure state machine: which tokens when, who waits, who gives way. No torch, no model."""

import random
from dataclasses import dataclass, field

import pytest

from splitfuse.engine.batch import Batch, RowFailure, SampledToken
from splitfuse.engine.block_manager import BlockManager
from splitfuse.engine.config import EngineConfig
from splitfuse.engine.policies import BATCHING_POLICIES
from splitfuse.engine.request import Request, Status
from splitfuse.engine.sampling_params import SamplingParams
from splitfuse.engine.scheduler import Scheduler

TOKEN = 7


def request(
    num_prompt: int,
    num_new: int = 8,
    *,
    name: str = "r",
    priority: int = 0,
    stop: frozenset[int] = frozenset(),
    leader: Request | None = None,
    tokens: list[int] | None = None,
    tenant: str = "",
    timeout_ms: int | None = None,
    max_queue_ms: int | None = None,
) -> Request:
    tokens = tokens or [1] * num_prompt
    return Request(
        request_id=name,
        prompt_token_ids=tokens,
        params=SamplingParams(priority=priority, timeout_ms=timeout_ms, max_queue_ms=max_queue_ms),
        max_num_tokens=len(tokens) + num_new,
        seed=0,
        stop_token_ids=stop,
        leader=leader,
        tenant=tenant,
    )


@dataclass
class Bench:
    """A scheduler whose model always says TOKEN, checked after every move."""

    scheduler: Scheduler
    now: float = 0.0
    batches: list[Batch] = field(default_factory=list)

    @classmethod
    def make(cls, *, num_blocks: int = 1000, num_host_blocks: int = 0, **settings: object) -> "Bench":
        config = EngineConfig(**{"block_size": 4, "enable_prefix_caching": False, **settings})  # type: ignore[arg-type]
        blocks = BlockManager(
            num_blocks=num_blocks,
            block_size=config.block_size,
            num_host_blocks=num_host_blocks,
            prefix_caching=config.enable_prefix_caching,
        )
        return cls(Scheduler(config, blocks))

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.scheduler.add(each)

    def step(self) -> list[tuple[str, int, int]]:
        """One step; its rows as (name, from, to)."""
        self.now += 1.0
        batch = self.scheduler.schedule(self.now)
        if batch is None:
            return []
        self.scheduler.update(batch, [SampledToken(TOKEN) if row.samples else None for row in batch.rows], self.now)
        self.scheduler.check()
        self.batches.append(batch)
        return [(row.request.request_id, row.start, row.end) for row in batch.rows]

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()
        self.assert_empty()

    def assert_empty(self) -> None:
        blocks = self.scheduler._blocks
        assert blocks.device.num_used_blocks == 0
        assert blocks.host is None or blocks.host.num_used_blocks == 0


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


def test_a_newcomer_is_admitted_only_with_its_whole_prompt_and_what_others_were_promised() -> None:
    bench = Bench.make(num_blocks=20, max_num_batched_tokens=8)
    bench.add(request(60, name="promised"), request(40, name="newcomer"))
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
def test_finish_frees_blocks_at_once_or_with_the_step_under_way(state: str) -> None:
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
        assert not bench.scheduler.finish(one, reason="abort", now=1.0)
        assert one.block_table, "the step under way still writes there"
        bench.scheduler.update(batch, [SampledToken(TOKEN)], 2.0)
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
    bench.scheduler.update(batch, [SampledToken(TOKEN), RowFailure("boom")], 1.0)
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
    bench.scheduler.update(batch, [RowFailure("not finite")], 1.0)
    assert reader.finish_reason == "abort"
    bench.add(again)
    bench.step()
    assert again.num_cached_tokens == 0


@pytest.mark.parametrize("seed", range(150))
def test_random_life(seed: int) -> None:
    """Whatever comes, goes or runs out: invariants hold after every step and every request ends."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 4, 16])
    longest = 120
    num_host_blocks = rng.choice([0, 3, 40])
    bench = Bench.make(
        num_blocks=-(-longest // block_size) + rng.choice([0, 1, 10, 100]),
        num_host_blocks=num_host_blocks,
        block_size=block_size,
        max_num_batched_tokens=rng.randint(1, 80),
        max_num_seqs=rng.randint(1, 12),
        long_prefill_token_threshold=rng.choice([0, rng.randint(1, 40)]),
        scheduling_policy=rng.choice(["fcfs", "priority", "fair"]),
        batching_policy=rng.choice(sorted(BATCHING_POLICIES)),
        enable_prefix_caching=rng.random() < 0.5,
        swap_space=1,
        preemption_mode=rng.choice(["auto", "recompute", "swap"]),
    )
    everyone: list[Request] = []
    for step in range(100_000):
        if step < 200 and rng.random() < 0.3:
            num_prompt = rng.randint(1, longest - 1)
            num_new = rng.randint(1, longest - num_prompt)
            group: list[Request] = []
            for _ in range(rng.choice([1, 1, 1, 3])):
                leader = group[0] if group else None
                level = rng.randint(-1, 1)
                group.append(request(num_prompt, num_new, name=f"{step}", priority=level, leader=leader))
            bench.add(*group)
            everyone += group
        batch = bench.scheduler.schedule(float(step))
        if everyone and rng.random() < 0.1:
            bench.scheduler.finish(rng.choice(everyone), reason="abort", now=float(step))
        if batch is not None:
            results = [
                None if not row.samples else RowFailure("x") if rng.random() < 0.01 else SampledToken(TOKEN)
                for row in batch.rows
            ]
            bench.scheduler.update(batch, results, float(step))
        bench.scheduler.check()
        if step > 200 and not bench.scheduler.has_work:
            break
    assert all(r.is_finished for r in everyone)
    bench.assert_empty()


def test_progress_with_a_pool_for_one() -> None:
    """The first in the queue is never preempted by another, so each in turn ends."""
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


def test_prefix_hits_share_full_blocks_and_leave_something_to_compute() -> None:
    bench = Bench.make(enable_prefix_caching=True, block_size=4)
    text = list(range(1, 15))
    first = request(0, 3, name="first", tokens=text)
    bench.add(first)
    bench.run()
    same, longer, other = (
        request(0, 3, name="same", tokens=text),
        request(0, 3, name="longer", tokens=text[:8] + [99] * 10),
        request(0, 3, name="other", tokens=[99] + text[1:]),
    )
    bench.add(same, longer, other)
    assert sorted(bench.step()) == [("longer", 8, 18), ("other", 0, 14), ("same", 12, 14)]
    assert (same.num_cached_tokens, longer.num_cached_tokens, other.num_cached_tokens) == (12, 8, 0)
    assert same.block_table[:2] == longer.block_table[:2]
    assert not set(same.block_table[2:]) & set(longer.block_table)
    whole = request(0, 3, name="whole", tokens=text[:8])
    bench.add(whole)
    bench.step()
    assert whole.num_cached_tokens == 4, "the block that holds the last token is computed"
    bench.run()


def test_newcomers_with_one_prefix_take_its_blocks_once() -> None:
    bench = Bench.make(enable_prefix_caching=True, num_blocks=10, block_size=4)
    text = list(range(1, 26))
    bench.add(request(0, 1, tokens=text))
    bench.run()
    bench.add(*(request(0, 1, name=name, tokens=text) for name in ("first", "second", "third")))
    assert bench.step() == [("first", 24, 25), ("second", 24, 25), ("third", 24, 25)]


def test_tenants_do_not_see_each_others_prefixes() -> None:
    bench = Bench.make(enable_prefix_caching=True)
    bench.add(request(20, name="a", tenant="A"))
    bench.run()
    stranger, friend = request(20, name="b", tenant="B"), request(20, name="c", tenant="A")
    bench.add(stranger, friend)
    bench.step()
    assert (stranger.num_cached_tokens, friend.num_cached_tokens) == (0, 16)


def test_a_colliding_hash_is_a_miss() -> None:
    bench = Bench.make(enable_prefix_caching=True)
    assert bench.scheduler._blocks.cache is not None
    bench.scheduler._blocks.cache._hash = lambda data: bytes([sum(data) % 4])
    rng = random.Random(0)
    texts = [[rng.randrange(9) for _ in range(30)] for _ in range(40)]
    for text in texts + texts:
        one = request(0, 1, tokens=text)
        bench.add(one)
        bench.step()
        hit = one.num_cached_tokens
        assert any(hit <= len(other) and other[:hit] == text[:hit] for other in texts)
    bench.run()


def test_least_recently_used_leaves_go_first() -> None:
    bench = Bench.make(enable_prefix_caching=True, num_blocks=8, block_size=4)
    old, new = list(range(100, 112)), list(range(200, 212))
    for text in (old, new):
        bench.add(request(0, 1, tokens=text))
        bench.run()
    bench.add(request(0, 4, tokens=list(range(300, 312))))  # 4 blocks: 2 never used, then the oldest leaves
    bench.run()
    again = request(0, 1, tokens=old)
    bench.add(again)
    bench.step()
    assert again.num_cached_tokens == 4, "the root of the old chain outlives its leaves"
    fresh = request(0, 1, tokens=new)
    bench.add(fresh)
    bench.step()
    assert fresh.num_cached_tokens == 8


def test_a_swapped_request_goes_on_where_it_was() -> None:
    bench = Bench.make(num_blocks=6, num_host_blocks=10, swap_space=1, preemption_mode="swap")
    bench.add(*(request(8, 12, name=name) for name in ("first", "second", "third")))
    bench.run()
    starts = {name: [] for name in ("first", "second", "third")}  # type: ignore[var-annotated]
    moves = [move for batch in bench.batches for move in (*batch.moves.swap_out, *batch.moves.swap_in)]
    for batch in bench.batches:
        for row in batch.rows:
            starts[row.request.request_id].append(row.start)
    assert all(positions == sorted(set(positions)) for positions in starts.values()), "nothing is computed twice"
    assert moves
    assert bench.scheduler.num_preemptions_by_mode["swap"] > 0
    assert bench.scheduler.num_preemptions_by_mode["recompute"] == 0


def test_auto_takes_the_cheaper_way() -> None:
    bench = Bench.make(num_blocks=6, num_host_blocks=10, swap_space=1)
    costs, victim = bench.scheduler.costs, request(8)
    victim.num_computed_tokens = 8  # two blocks
    costs.seconds_per_block, costs.seconds_per_token = 1.0, 0.49
    assert not costs.prefers_swap(victim, 4)
    costs.seconds_per_token = 0.51
    assert costs.prefers_swap(victim, 4)


def test_outputs_of_one_prompt_share_its_blocks_and_copy_the_last() -> None:
    bench = Bench.make(block_size=4)
    leader = request(10, name="0")
    bench.add(leader, *(request(10, name=str(i), leader=leader) for i in (1, 2)))
    assert bench.step() == [("0", 0, 10)]
    assert bench.step() == [("0", 10, 11), ("1", 9, 10), ("2", 9, 10)]
    moves = bench.batches[-1].moves
    tables = [r.block_table for r in bench.scheduler.running]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert moves.copies == [(tables[0][2], tables[1][2]), (tables[0][2], tables[2][2])]
    assert bench.scheduler._blocks.device.num_used_blocks == 5
    bench.run()


def test_a_whole_last_block_needs_no_copy() -> None:
    bench = Bench.make(block_size=4)
    leader = request(9, name="0")
    other = request(9, name="1", leader=leader)
    bench.add(leader, other)
    bench.step()
    bench.step()
    assert bench.batches[-1].moves.copies == []
    assert other.block_table[:2] == leader.block_table[:2]
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
    assert len(bench.scheduler._deadlines) < 100
    bench.scheduler.expire(bench.now + 6)
    assert slow.finish_reason == "timeout"


def test_a_thousand_aborts_at_once_take_one_step() -> None:
    bench = Bench.make(max_num_seqs=200, num_blocks=4000)
    crowd = [request(8, 8, name=str(i)) for i in range(1000)]
    bench.add(*crowd)
    batch = bench.scheduler.schedule(1.0)
    assert batch is not None
    for each in crowd:
        bench.scheduler.finish(each, reason="abort", now=1.0)
    bench.scheduler.update(batch, [SampledToken(TOKEN) if row.samples else None for row in batch.rows], 2.0)
    assert not bench.scheduler.has_work
    bench.assert_empty()
