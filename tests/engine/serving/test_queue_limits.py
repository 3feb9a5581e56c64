"""QueueLimits with a clock and predictions of the test's own."""

import pytest

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.errors import QueueFullError
from splitfuse.engine.serving.queue_limits import QueueLimits


class World:
    now = 100.0
    wait_s = 0.0

    def predicted_wait_s(self) -> float:
        return self.wait_s

    def predicted_s_until_ended(self, num_requests: int) -> float:
        return 7.0 * num_requests


def limits(world: World, *, size: int = 4, seconds: float | None = None) -> QueueLimits:
    config = EngineConfig(max_queue_size=size, max_queue_seconds=seconds)
    return QueueLimits(config, clock=lambda: world.now)


def retry_after(queue: QueueLimits, world: World, *, num_waiting: int, num_new: int = 1) -> float | None:
    try:
        queue.check(world, num_waiting=num_waiting, num_new=num_new, num_own=len)
    except QueueFullError as exc:
        return exc.retry_after_s
    return None


def test_an_empty_queue_takes_any_number_and_another_as_many_as_it_holds() -> None:
    world = World()
    queue = limits(world)
    assert retry_after(queue, world, num_waiting=0, num_new=100) is None
    assert retry_after(queue, world, num_waiting=3) is None
    with pytest.raises(QueueFullError, match="4 requests wait and the queue holds 4; try again in 7 s"):
        queue.check(world, num_waiting=4, num_new=1, num_own=len)


def test_the_time_to_come_again_is_that_of_the_cost_model_and_then_of_the_last_ends() -> None:
    world = World()
    queue = limits(world)
    assert retry_after(queue, world, num_waiting=4, num_new=3) == 21.0
    queue.note_end()
    world.now += 10.0
    queue.note_end()
    assert retry_after(queue, world, num_waiting=4, num_new=3) == 15.0, "one in 5 s"
    world.now += 1000.0
    assert retry_after(queue, world, num_waiting=4) == 60.0


def test_a_predicted_wait_may_be_too_long() -> None:
    world = World()
    queue = limits(world, seconds=2.0)
    world.wait_s = 2.0
    assert retry_after(queue, world, num_waiting=1) is None
    world.wait_s = 2.5
    assert retry_after(queue, world, num_waiting=0) == 1.0, "the least"
    world.wait_s = 12.0
    with pytest.raises(QueueFullError, match=r"a first token is 12\.0 s away .* is 2; try again in 10 s"):
        queue.check(world, num_waiting=1, num_new=1, num_own=len)
