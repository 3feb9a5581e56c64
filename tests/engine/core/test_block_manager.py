"""Sharing of blocks between requests, and the fate of shared and swapped blocks. No torch, no model."""

import random
from collections import Counter

from scheduler_bench import Bench, request


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


def test_waiting_requests_with_one_prefix_take_its_blocks_once() -> None:
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


def test_requests_with_other_salts_do_not_share_prefixes() -> None:
    bench = Bench.make(enable_prefix_caching=True)
    bench.add(request(20, name="a", tenant="A", cache_salt="1"))
    bench.run()
    others = [
        request(20, name=f"b{salt}{tenant}", tenant=tenant, cache_salt=salt) for salt, tenant in ["2A", "1B", ("", "A")]
    ]
    same = request(20, name="c", tenant="A", cache_salt="1")
    bench.add(*others, same)
    bench.step()
    assert [request.num_cached_tokens for request in others] == [0, 0, 0]
    assert same.num_cached_tokens == 16


def test_a_colliding_hash_is_a_miss() -> None:
    bench = Bench.make(enable_prefix_caching=True)
    assert bench.scheduler.blocks.cache is not None
    bench.scheduler.blocks.cache._hash = lambda data: bytes([sum(data) % 4])
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
    parent = request(10, name="0")
    bench.add(parent, *(request(10, name=str(i), parent=parent) for i in (1, 2)))
    assert bench.step() == [("0", 0, 10)]
    assert bench.step() == [("0", 10, 11), ("1", 9, 10), ("2", 9, 10)]
    moves = bench.batches[-1].moves
    tables = [r.block_table for r in bench.scheduler.running]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert moves.copies == [(tables[0][2], tables[1][2]), (tables[0][2], tables[2][2])]
    assert bench.scheduler.blocks.device.num_used_blocks == 5
    bench.run()


def test_a_whole_last_block_needs_no_copy() -> None:
    bench = Bench.make(block_size=4)
    parent = request(9, name="0")
    other = request(9, name="1", parent=parent)
    bench.add(parent, other)
    bench.step()
    bench.step()
    assert bench.batches[-1].moves.copies == []
    assert other.block_table[:2] == parent.block_table[:2]
    bench.run()


def test_a_flood_leaves_a_tenant_its_share_of_the_prefix_cache() -> None:
    """A pool of 130 blocks of 16; with the least recently used evicted first nothing of the victim is left."""
    bench = Bench.make(enable_prefix_caching=True, num_blocks=130, block_size=16)
    text = list(range(1000, 1330))
    bench.add(request(0, 4, tokens=text, tenant="victim"))
    bench.run()
    for number in range(8):
        bench.add(request(0, 4, tokens=[number] * 600, tenant="flood"))
        bench.run()
    again = request(0, 4, tokens=text, tenant="victim")
    bench.add(again)
    bench.run()
    assert again.num_cached_tokens == 320


def test_shares_of_the_prefix_cache_go_by_weight() -> None:
    """Floors: a third and a sixth of the pool."""
    weights = {"heavy": 2.0, "light": 1.0}
    bench = Bench.make(
        enable_prefix_caching=True, num_blocks=60, block_size=4, scheduling_policy="fair", tenant_weights=weights
    )
    texts = {"heavy": list(range(121)), "light": list(range(500, 561))}
    for tenant, text in texts.items():
        bench.add(request(0, 1, tokens=text, tenant=tenant))
        bench.run()
    for number in range(20):
        bench.add(request(0, 1, tokens=[number] * 40, tenant="heavy" if number % 2 else "light"))
        bench.run()
    counts = Counter(holding.tenant for holding in bench.scheduler.blocks.device._cache.shares._holding_of.values())
    assert counts["heavy"] >= 20
    assert counts["light"] >= 10
