"""When the requests of an engine will have ended, by its cost model."""

import pytest
from scheduler_bench import request

from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.core.request import Request
from splitfuse.engine.serving.wait_prediction import seconds_until_ended


def queued(*num_new: int, num_prompt: int = 10) -> list[Request]:
    return [request(num_prompt, num_tokens) for num_tokens in num_new]


def test_the_time_until_requests_have_ended() -> None:
    model = CostModel.fixed(1.0, 0.1, 0.0)
    assert seconds_until_ended(model, queued(400), 1, max_num_seqs=8) == pytest.approx(1 + 400 * 1.1)
    two = queued(400, 100)
    assert seconds_until_ended(model, two, 1, max_num_seqs=8) == pytest.approx(2 + 100 * 1.2), "the shorter one ends"
    assert seconds_until_ended(model, two, 2, max_num_seqs=8) == pytest.approx(2 + 400 * 1.2)
    assert seconds_until_ended(model, two, 1, max_num_seqs=1) == pytest.approx(1 + 400 * 1.1), "the other one waits"
    assert seconds_until_ended(model, queued(*[400] * 5), 3, max_num_seqs=2) == pytest.approx(4 + 800 * 1.2)


def test_a_full_queue_of_long_requests_takes_more_than_a_second() -> None:
    """With what the model expects before it has seen a step."""
    waiting = queued(*[400] * 1024)
    assert 5 < seconds_until_ended(CostModel(), waiting, 1, max_num_seqs=64) < 60
