"""Clients of a world, who check each output token by token against the oracle and the clock."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from beside_core import CORE_ALONE
from fake_model import FakeModel, Oracle

from splitfuse.engine.core.outputs import OutputDelta
from splitfuse.engine.core.request import Request


class FakeText:
    """Stand-in for a TextStream: some tokens complete a stop string, some cannot be decoded."""

    def __init__(self) -> None:
        self.stopped_by: str | None = None
        self.has_failed = False

    def push(self, token_id: int | None, *, last: bool, may_stop: bool = True) -> str:
        if token_id is not None and token_id % 32 == 30:
            self.has_failed = True
            raise ValueError(token_id)
        if token_id is not None and token_id % 32 == 31 and may_stop:
            self.stopped_by = "stop"
        return ""


@dataclass(slots=True)
class Stream:
    """A client's record of one output."""

    request: Request
    oracle: Oracle
    text: FakeText | None
    deadline: float
    queue_deadline: float
    num_tokens: int = 0
    is_aborted: bool = False

    @property
    def must_stop(self) -> bool:
        """True if the last token is an end token."""
        request = self.request
        is_free = self.num_tokens > request.params.min_tokens
        return is_free and request.token_ids[-1] in request.stop_token_ids

    def is_late(self, now: float) -> bool:
        """True if the deadline has passed."""
        return self.deadline <= now or (self.queue_deadline <= now and self.request.first_scheduled_time is None)


class Clients:
    """Clients of all outputs that have not ended."""

    def __init__(self, model: FakeModel) -> None:
        self._model = model
        self.streams: dict[tuple[str, int], Stream] = {}
        self.endings: Counter[str] = Counter()
        self.fingerprint = 0  # hash of all tokens received

    def expect(self, request: Request, text: FakeText | None) -> None:
        """Record that a request was added."""
        params = request.params
        deadline, queue_deadline = (
            inf if milliseconds is None else request.arrival_time + milliseconds / 1000
            for milliseconds in (params.timeout_ms, params.max_queue_ms)
        )
        self.streams[request.request_id, request.index] = Stream(
            request, Oracle(request), text, deadline, queue_deadline
        )

    def aborted(self, request_id: str) -> None:
        """Record an abort: the outputs must end at once, or with the step in flight."""
        for stream in self.streams.values():
            stream.is_aborted |= stream.request.request_id == request_id

    def receive(self, deltas: Iterable[OutputDelta], now: float) -> list[Request]:
        """Check that every token is the oracle's and every end has a reason. Returns a request per token."""
        with_tokens = []
        for delta in deltas:
            stream = self.streams.get((delta.request_id, delta.index))
            assert stream is not None, f"{delta.request_id}/{delta.index} has a delta after its end"
            for count, token_id in enumerate(delta.token_ids, 1):
                expected = stream.oracle.next_token()
                assert token_id == expected, f"{stream.request} has {token_id}, the oracle {expected}"
                stream.num_tokens += 1
                self.fingerprint = hash((self.fingerprint, token_id))
                with_tokens.append(stream.request)
                is_end = token_id in stream.request.stop_token_ids
                is_end &= stream.num_tokens > stream.request.params.min_tokens
                assert count == len(delta.token_ids) or not is_end, f"{stream.request} goes on after an end token"
            if delta.finish_reason is not None:
                self._check_end(stream, delta, now)
                del self.streams[delta.request_id, delta.index]
            elif delta.token_ids:
                assert not stream.must_stop, f"{stream.request} goes on after an end token"
                assert stream.request.num_tokens < stream.request.max_num_tokens, f"{stream.request} goes on"
        return with_tokens

    def check_aborted(self) -> None:
        """Check that no request survives a step before whose end it was aborted."""
        for stream in self.streams.values():
            assert not stream.is_aborted, f"{stream.request} goes on after it was aborted"

    def check_late(self, now: float) -> None:
        """Check before a step that no request survives its deadline."""
        for stream in self.streams.values():
            assert not stream.is_late(now), f"{stream.request} goes on after its deadline"

    def _check_end(self, stream: Stream, delta: OutputDelta, now: float) -> None:
        request, reason, text = stream.request, str(delta.finish_reason), stream.text
        self.endings[reason] += 1
        assert request.is_finished
        assert request.num_output_tokens == stream.num_tokens, f"{request} lost a token on the way"
        history, end = request.metrics().history, request.finished_time
        assert (history is None) == CORE_ALONE
        assert end is not None
        if history is not None:
            spent = sum(history.seconds.values())
            assert abs(spent - (end - request.arrival_time)) < 1e-6, f"{request}: {history}"
        allowed = {
            "length": request.num_tokens == request.max_num_tokens,
            "stop": stream.must_stop or (text is not None and text.stopped_by is not None),
            "abort": stream.is_aborted,
            "timeout": stream.is_late(now),
            "error": request in self._model.failed or (text is not None and text.has_failed),
        }
        assert allowed[reason], f"{request} has no reason to end by {reason}"
        if text is not None and (text.stopped_by is not None or text.has_failed):
            assert delta.token_ids[-1] % 32 >= 30, f"{request} goes on behind its end"
        self._model.failed.discard(request)
