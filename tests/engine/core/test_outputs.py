"""Outputs of the engine as JSON."""

from dataclasses import asdict

from splitfuse.engine.core.outputs import StepStats


def test_a_step_is_told_without_copying_its_gaps() -> None:
    step = StepStats(3, 1.5, 0.1, 0, 2, 2, 0, 4, 64, 0, ttfts=(0.5,), itls=(0.1, 0.2))
    assert step.to_dict() == asdict(step)
    assert step.to_dict()["itls"] is step.itls
