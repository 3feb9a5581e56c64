"""Confidence: drafts end where tokens of their kind were wrong too often, by sources that were right."""

import pytest
from scheduler_bench import request

from splitfuse.engine.extras.spec_decode.confidence import Candidate, Confidence


def draft(token_ids: list[int], num_matched: int = 3) -> list[Candidate]:
    return [(token_id, num_matched + at, 1.0) for at, token_id in enumerate(token_ids)]


def teach(confidence: Confidence, one: list[int], other: list[int], *, text: list[int], count: int) -> None:
    now = request(1)
    for _ in range(count):
        confidence.best(now, (draft(one), draft(other)))
        now.token_ids += text


def test_kinds_are_cut_where_they_were_wrong() -> None:
    confidence, now = Confidence(), request(1)
    confidence.least = 0.55
    assert confidence.best(now, (draft([5, 6, 7]), ())) == [5]  # the first guess is 0.6 a token
    teach(confidence, [5, 6, 7, 8, 9, 10], [], text=[5, 6, 7, 8, 9, 20], count=40)
    # Matches of 3, of 4 to 7 and of 8: only a token after 8 was always wrong.
    assert confidence.best(now, (draft([5, 6, 7, 8, 9, 10]), ())) == [5, 6, 7, 8, 9]


def test_tokens_that_are_not_drafted_are_judged() -> None:
    confidence, now = Confidence(), request(1)
    confidence.least = 0.7
    assert confidence.best(now, (draft([5]), ())) == []
    teach(confidence, [5], [], text=[5], count=20)
    assert confidence.best(now, (draft([5]), ())) == [5]


@pytest.mark.parametrize("right", [0, 1])
def test_the_source_with_most_to_gain_drafts(right: int) -> None:
    confidence, now = Confidence(), request(1)
    confidence.least = 0.5
    teach(confidence, [5, 6], [7, 8], text=[[5, 6], [7, 8]][right], count=20)
    assert confidence.best(now, (draft([5, 6]), draft([7, 8]))) == [[5, 6], [7, 8]][right]


def test_sources_that_agree_are_trusted_more() -> None:
    confidence, now = Confidence(), request(1)
    confidence.least = 0.5
    teach(confidence, [5], [5], text=[5], count=20)
    teach(confidence, [5], [6], text=[7], count=20)
    assert confidence.best(now, (draft([5]), draft([5]))) == [5]
    assert confidence.best(now, (draft([5]), draft([6]))) == []


def test_nothing_stays_of_a_request_that_has_ended() -> None:
    confidence, now = Confidence(), request(1)
    confidence.best(now, (draft([5]), draft([6])))
    confidence.forget(now)
    confidence.forget(request(1))
    assert not confidence._last
