"""Order in which checkpoints are evicted."""

from splitfuse.engine.extras.hybrid.checkpoints import Checkpoint, Checkpoints


def checkpoints_of(*gains: int, num_slots: int = 100) -> Checkpoints:
    found = Checkpoints(num_slots)
    for key, gain in enumerate(gains):
        found.add(Checkpoint(key, key, "", gain))
    return found


def evicted(checkpoints: Checkpoints, count: int) -> list[object]:
    keys = []
    for _ in range(count):
        chosen = checkpoints.next_evicted(lambda checkpoint: True)
        assert chosen is not None
        checkpoints.pop(chosen.key)
        checkpoints.check()
        keys.append(chosen.key)
    return keys


def test_the_least_tokens_go_first_and_the_oldest_of_equal_ones() -> None:
    assert evicted(checkpoints_of(300, 20, 500, 20), 4) == [1, 3, 0, 2]


def test_a_hit_keeps_a_checkpoint_and_time_wears_the_others() -> None:
    checkpoints = checkpoints_of(30, 40)
    assert evicted(checkpoints, 1) == [0]
    checkpoints.add(Checkpoint("new", 0, "", 20))  # ranked from the last evicted one on: 50
    assert evicted(checkpoints, 1) == [1]
    checkpoints = checkpoints_of(30, 40, 45)
    evicted(checkpoints, 1)
    checkpoints.use(1)
    assert evicted(checkpoints, 2) == [2, 1]


def test_what_is_in_use_stays() -> None:
    checkpoints = checkpoints_of(10, 20)
    chosen = checkpoints.next_evicted(lambda checkpoint: checkpoint.key == 1)
    assert chosen is not None
    assert chosen.key == 1
    assert checkpoints.next_evicted(lambda checkpoint: False) is None


def test_a_tenant_below_half_its_share_loses_nothing() -> None:
    checkpoints = Checkpoints(8)
    for key in range(7):
        checkpoints.add(Checkpoint(key, key, "flood", 1000))
    checkpoints.add(Checkpoint("few", 7, "regular", 1))
    assert "few" not in evicted(checkpoints, 5)
    assert len(checkpoints) == 3


def test_the_end_of_a_turn_goes_once_the_next_turn_has_one() -> None:
    checkpoints = checkpoints_of(100)
    first, second, within = (Checkpoint(key, 0, "", 160, is_end=key != "within") for key in ("a", "b", "within"))
    for checkpoint in (first, second, within):
        checkpoints.add(checkpoint)
        checkpoints.use(checkpoint.key)
        checkpoints.supersede(checkpoint)
    checkpoints.use("b")  # a branch: the place has two continuations, and stays
    assert [first.gain, second.gain, within.gain] == [10, 10, 160]
    twice = Checkpoint("twice", 0, "", 160, is_end=True, num_hits=2)
    checkpoints.add(twice)
    checkpoints.supersede(twice)
    assert twice.gain == 160
    assert evicted(checkpoints, 2) == ["a", "b"]
