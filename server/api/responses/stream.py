"""The event stream of /v1/responses: the events of a response's life, the same numbers every time."""

from collections.abc import Sequence

from ....engine.outputs import OutputDelta
from ...http.errors import Problem
from ...http.json_response import dumps
from ...http.sse import frame
from .output_items import Event
from .response import ResponseLife


class ResponsesStreamWriter:
    """The events after the one with the number `after`; those before are replayed, not written."""

    def __init__(self, life: ResponseLife, *, after: int) -> None:
        self._life = life
        self._after = after

    def begin(self) -> bytes:
        """The response as it was before there was any output."""
        return self._frames(self._life.begin())

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        """What the events bring."""
        return self._frames([event for delta in deltas for event in self._life.push(delta)])

    async def end(self) -> Sequence[bytes]:
        """The end of the output, and of the response."""
        return [self._frames(self._life.end())]

    def error(self, problem: Problem) -> bytes:
        """A failure of the stream itself."""
        return _frame({**problem.error(), "type": "error", "sequence_number": -1}).encode("ascii")

    def _frames(self, events: Sequence[Event]) -> bytes:
        return "".join(_frame(event) for event in events if event["sequence_number"] > self._after).encode("ascii")


def _frame(event: Event) -> str:
    return frame(dumps(event), event=event["type"])
