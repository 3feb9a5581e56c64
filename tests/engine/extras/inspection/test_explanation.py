"""Explanations: the words of each event, and shares equal to the history's."""

import pytest

from splitfuse.engine.core.outputs import RequestMetrics
from splitfuse.engine.extras.inspection.explanation import explain
from splitfuse.engine.extras.inspection.history import Event, History
from splitfuse.engine.extras.inspection.words import WAITS, phase_text, sentence

EVENTS = (
    Event(0.1, "waits", "blocks", (3,)),
    Event(0.5, "admitted", "", (16, 40)),
    Event(0.5, "chunk", "", (16, 24, 100, 3)),
    Event(1.5, "preempted", "swap", (41, 0.011, 0.019)),
    Event(1.6, "waits", "sequences"),
)
SECONDS = {"queue.step": 0.1, "queue.blocks": 0.4, "prefill": 0.5, "decode.alone": 0.5, "preempted.sequences": 0.5}


def metrics(history: History | None) -> RequestMetrics:
    return RequestMetrics(10.0, 10.5, 11.0, 12.0, 40, 3, 16, 1, 6, 4, history)


def test_a_timeline_in_words() -> None:
    explanation = explain(metrics(History(EVENTS, SECONDS, 0, 0.75)), now=99.0, finish_reason="stop")
    assert [(entry["t"], entry["what"]) for entry in explanation.timeline] == [
        (0.0, "arrived"), (0.1, "waits"), (0.5, "admitted"), (0.5, "chunk"), (1.0, "first token"), (1.5, "preempted"),
        (1.6, "waits"), (2.0, "ended"),
    ]  # fmt: skip
    why = [entry["why"] for entry in explanation.timeline]
    assert why[1] == "the KV cache had too few free blocks: 3 more were needed"
    assert why[2] == "it runs from here on; 16 of its 40 tokens were in the cache already"
    assert why[3] == "tokens 16 to 39 of it, beside 3 other requests with 100 tokens"
    assert why[4] == "predicted after 750 ms when it came"
    assert why[5].endswith("with 41 tokens (estimated: to swap 11.0 ms, to recompute 19.0 ms)")
    assert why[7] == "stop, after 3 tokens; 4 of 6 drafted tokens were accepted"
    assert (explanation.e2e_s, explanation.ttft_s, explanation.predicted_ttft_s) == (2.0, 1.0, 0.75)
    assert explanation.shares == SECONDS
    assert set(explanation.to_dict()["share_texts"]) == set(SECONDS)


def test_a_timeline_without_others_has_the_same_entries_and_only_its_own_numbers() -> None:
    history = History(EVENTS, SECONDS, 0, 0.75)
    whole = explain(metrics(history), now=99.0, finish_reason="stop")
    own = explain(metrics(history), now=99.0, finish_reason="stop", sees_others=False)
    assert [entry["what"] for entry in own.timeline] == [entry["what"] for entry in whole.timeline]
    assert own.shares == whole.shares
    assert own.timeline[1] == {"t": 0.1, "what": "waits", "why": "the KV cache had too few free blocks"}
    assert own.timeline[2] == whole.timeline[2]
    assert own.timeline[3] == {"t": 0.5, "what": "chunk", "why": "tokens 16 to 39 of it", "numbers": [16, 24]}
    assert own.timeline[5] == whole.timeline[5]


def test_a_request_without_a_history_is_explained_by_its_times() -> None:
    explanation = explain(metrics(None), now=99.0, finish_reason="length")
    assert explanation.shares == {"queue.unknown": 0.5, "prefill": 0.5, "decode.alone": 1.0}
    assert sum(explanation.shares.values()) == pytest.approx(explanation.e2e_s)
    assert "not known" in explanation.timeline[1]["why"]


def test_one_that_still_waits_is_explained_up_to_now() -> None:
    waiting = RequestMetrics(10.0, None, None, None, 40, 0, 0, 0)
    made = explain(waiting, now=10.25, finish_reason=None)
    assert (made.e2e_s, made.ttft_s) == (0.25, None)
    assert made.shares["queue.unknown"] == 0.25
    assert made.timeline[-1]["what"] != "ended"


@pytest.mark.parametrize("kind", ["queue", "preempted"])
def test_every_wait_has_words(kind: str) -> None:
    for why in WAITS:
        assert sentence(Event(0.0, "waits", why))
        assert phase_text(f"{kind}.{why}").startswith("waited")
    for why in ("budget", "policy"):
        assert phase_text(f"paused.{why}").startswith("left out")
