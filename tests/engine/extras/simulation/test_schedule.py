"""Steps for requests of given lengths."""

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.simulation.schedule import StepCounts, splitfuse_schedule


def test_the_schedule_of_the_example() -> None:
    steps = splitfuse_schedule([1536, 128, 512, 4096, 64], [64] * 5, 1024, 512)
    assert steps[:4] == [StepCounts(1024, 0, 3), StepCounts(1023, 1, 3), StepCounts(1022, 2, 2), StepCounts(576, 3, 2)]
    assert sum(step.prefill for step in steps) == 1536 + 128 + 512 + 4096 + 64
    assert sum(step.decode for step in steps) == 5 * 63
    assert all(step.prefill + step.decode <= 1024 for step in steps)
    assert steps[-1] == StepCounts(0, 1, 0)


def test_a_schedule_without_a_piece_size_and_of_a_rival() -> None:
    assert splitfuse_schedule([10, 3], [2, 1], 8) == [(8, 0, 1), (5, 0, 2), (0, 1, 0)]
    assert splitfuse_schedule([10, 3], [2, 1], 8, batching_policy="prefill_first") == [(10, 0, 1), (3, 0, 1), (0, 1, 0)]


@pytest.mark.parametrize(("prompts", "outputs"), [([], []), ([1], [1, 2]), ([0], [1]), ([1], [0])])
def test_a_schedule_of_nothing_is_refused(prompts: list[int], outputs: list[int]) -> None:
    with pytest.raises(ConfigError):
        splitfuse_schedule(prompts, outputs, 8)
