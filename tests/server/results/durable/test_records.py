"""Records of events read back unchanged."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from splitfuse.engine.core.outputs import OutputDelta, PromptLogprobs, RequestMetrics, TokenLogprobs
from splitfuse.engine.errors import ConstraintError, RequestFailedError
from splitfuse.engine.extras.inspection.history import Event, History
from splitfuse.server.results.durable.records import (
    delta_of,
    dump_result,
    dump_segment,
    event_of,
    load_result,
    load_segment,
)

ids = st.integers(0, 200_000)
logprob = st.floats(allow_nan=False, max_value=0.0)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
counts = st.integers(0, 10**6)
times = st.none() | st.floats(-1e6, 1e6)


def prompt_logprobs(num_top: int, token_ids: list[int]) -> PromptLogprobs:
    scores = PromptLogprobs(num_top)
    flat = [token_id for token_id in token_ids for _ in range(num_top)]
    scores.add(token_ids, [-0.1] * len(token_ids), [1] * len(token_ids), flat, [-0.25] * len(flat))
    return scores


scored = st.builds(TokenLogprobs, ids, logprob, st.lists(st.tuples(ids, logprob), max_size=3).map(tuple), counts)
metrics = st.builds(RequestMetrics, st.floats(-1e6, 1e6), times, times, times, *[counts] * 6)
errors = st.builds(RequestFailedError, texts, error_id=texts, code=st.none() | texts) | st.builds(
    ConstraintError, texts, error_id=texts, param=texts
)
deltas = st.builds(
    OutputDelta, st.just("r"), st.integers(0, 63), texts, st.lists(ids, max_size=4).map(tuple),
    st.none() | st.lists(scored, max_size=3).map(tuple), forced_from=st.none() | counts,
) | st.builds(
    OutputDelta,
    st.just("r"),
    st.integers(0, 63),
    texts,
    st.just(()),
    finish_reason=st.sampled_from(["stop", "length", "abort", "error", "timeout"]),
    stop_reason=st.none() | ids | texts,
    metrics=st.none() | metrics,
    error=st.none() | errors,
)  # fmt: skip


def as_told(delta: OutputDelta) -> object:
    """Return the fields of a delta that can be compared."""
    error = delta.error and (type(delta.error), str(delta.error), vars(delta.error))
    scores = delta.prompt_logprobs and (delta.prompt_logprobs.num_top, delta.prompt_logprobs.to_lists())
    names = [name for name in OutputDelta.__slots__ if name not in ("error", "prompt_logprobs")]
    return [getattr(delta, name) for name in names], error, scores


@given(st.lists(deltas, max_size=5))
def test_events_read_back_as_they_were(written: list[OutputDelta]) -> None:
    segment = load_segment(dump_segment([(7, event_of(delta)) for delta in written], wall=1e9, monotonic=5.0))
    read = [delta_of(event, request_id="r") for _, event in segment.events]
    assert list(map(as_told, read)) == list(map(as_told, written))
    result, _ = load_result(dump_result(written))
    assert [as_told(delta_of(event, request_id="r")) for event in result] == list(map(as_told, written))


def test_prompt_logprobs_read_back_to_the_last_bit() -> None:
    delta = OutputDelta("r", 0, "x", (1,), prompt_logprobs=prompt_logprobs(3, [5, 6, 7]))
    assert as_told(delta_of(event_of(delta), request_id="r")) == as_told(delta)


def test_times_are_translated_and_nothing_else() -> None:
    delta = OutputDelta("r", 0, "", (), finish_reason="stop", metrics=RequestMetrics(1.0, None, 2.0, 3.0, 4, 5, 6, 7))
    read = delta_of(event_of(delta), request_id="r", time_of=lambda time: time + 100)
    assert read.metrics == RequestMetrics(101.0, None, 102.0, 103.0, 4, 5, 6, 7)


def test_a_history_is_kept_with_its_own_times() -> None:
    history = History((Event(0.5, "chunk", "", (0, 4, 0, 0)),), {"prefill": 1.0}, 1, 0.25)
    metrics = RequestMetrics(1.0, 1.0, 2.0, 3.0, 4, 5, 6, 7, history=history)
    delta = OutputDelta("r", 0, "", (), finish_reason="stop", metrics=metrics)
    more = {"weights": {"weights_version": 3}}
    (event,), read_more = load_result(dump_result([delta], more))
    assert read_more == more
    read = delta_of(event, request_id="r", time_of=lambda time: time + 100)
    assert read.metrics is not None
    assert read.metrics.history == history


@given(st.data())
def test_a_damaged_segment_is_refused(data: st.DataObject) -> None:
    body = bytearray(dump_segment([(1, [0, " there", [421]])], wall=1.0, monotonic=2.0))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="checksum"):
        load_segment(bytes(body))
