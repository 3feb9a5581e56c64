"""Index of entries: counts, and who goes first."""

import random

import pytest

from splitfuse.engine.extras.disk_cache.entry_index import EntryIndex


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_bounded_and_counted_through_any_calls(seed: int) -> None:
    rng, index, sizes = random.Random(seed), EntryIndex(1000), dict[str, int]()
    for _ in range(600):
        path = f"m/{rng.randrange(3)}/{rng.randrange(60)}"
        match rng.randrange(4):
            case 0 | 1:
                size = rng.randrange(1, 80)
                index.remove(path)
                sizes.pop(path, None)
                for evicted in index.make_room(size):
                    del sizes[evicted]
                index.add(path, tenant=path.split("/")[1], num_bytes=size, gain=rng.choice((16, 256)))
                sizes[path] = size
            case 2:
                index.use([path])
            case 3:
                index.remove(path)
                sizes.pop(path, None)
        assert index.num_bytes == sum(sizes.values())
        assert all(path in index for path in sizes)
        assert len(index) == len(sizes)
        index.check()


def test_a_prompt_loses_its_end_before_its_beginning() -> None:
    index = EntryIndex(100)
    for block in range(10):
        index.add(f"m/t/{block}", tenant="t", num_bytes=10, gain=16)
    index.use(f"m/t/{block}" for block in reversed(range(10)))
    assert index.make_room(30) == ["m/t/9", "m/t/8", "m/t/7"]


def test_what_is_used_stays_and_what_saves_more_for_its_bytes() -> None:
    index = EntryIndex(100)
    index.add("m/t/large", tenant="t", num_bytes=50, gain=16)
    index.add("m/t/old", tenant="t", num_bytes=10, gain=16)
    index.add("m/t/used", tenant="t", num_bytes=10, gain=16)
    index.add("m/t/valuable", tenant="t", num_bytes=10, gain=256)
    index.use(["m/t/used"])
    assert index.make_room(90) == ["m/t/large", "m/t/old", "m/t/used"]


def test_recency_wins_in_the_end() -> None:
    index = EntryIndex(100)
    index.add("m/t/valuable", tenant="t", num_bytes=10, gain=64)
    for number in range(1000):
        index.make_room(10)
        index.add(f"m/t/{number}", tenant="t", num_bytes=10, gain=16)
    assert "m/t/valuable" not in index


def test_a_flood_leaves_another_tenant_half_of_its_share() -> None:
    index = EntryIndex(1000)
    for number in range(30):
        index.add(f"m/quiet/{number}", tenant="quiet", num_bytes=10, gain=1)
    for number in range(500):
        index.make_room(10)
        index.add(f"m/flood/{number}", tenant="flood", num_bytes=10, gain=1000)
    assert sum(f"m/quiet/{number}" in index for number in range(30)) == 25
    index.check()
