"""Goals come from the request, then the server."""

import pytest
from scheduler_bench import request

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.extras.deadlines.goals import NO_GOALS, Goals, GoalTable


def test_the_nearest_goal_wins() -> None:
    table = GoalTable(EngineConfig(ttft_ms=900))
    assert table.of(request(4)) == Goals(0.9, None)
    assert table.of(request(4, ttft_ms=500, itl_ms=20)) == Goals(0.5, 0.02)
    assert table.of(request(4, is_background=True)) == NO_GOALS


def test_a_token_is_due_as_many_gaps_after_the_first_as_lie_between() -> None:
    goals, served = Goals(1.0, 0.1), request(4)
    assert goals.ttft_slack(served) is None
    served.arrival_time, served.first_token_time, served.last_token_time = 10.0, 10.4, 10.9
    served.token_ids += [1] * 6
    assert goals.ttft_slack(served) == pytest.approx(0.6)
    assert goals.itl_slack(served) == pytest.approx(0.0)


def test_goals_of_requests_are_checked() -> None:
    with pytest.raises(InvalidRequestError, match="ttft_ms must be between 1"):
        request(4, ttft_ms=0)
