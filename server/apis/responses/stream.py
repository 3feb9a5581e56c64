"""Event stream of /v1/responses: the events of a response's life, with the same numbers on every replay."""

from collections.abc import Sequence

from ....engine.core.outputs import OutputDelta
from ...api.streaming import StreamWriter
from ...http.errors import Problem
from ...http.json_response import dumps
from ...http.sse import frame
from .output_items import Event
from .response import ResponseLife


class ResponsesStreamWriter(StreamWriter):
    """Events after number `after`; earlier events are replayed without being written."""

    def __init__(self, life: ResponseLife, *, after: int) -> None:
        self._life = life
        self._after = after

    def begin(self) -> bytes:
        return self._frames(self._life.begin())

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        return self._frames([event for delta in deltas for event in self._life.push(delta)])

    async def end(self) -> Sequence[bytes]:
        return [self._frames(self._life.end())]

    def error(self, problem: Problem) -> bytes:
        return _frame({**problem.error(), "type": "error", "sequence_number": -1}).encode("ascii")

    def _frames(self, events: Sequence[Event]) -> bytes:
        return "".join(_frame(event) for event in events if event["sequence_number"] > self._after).encode("ascii")


def _frame(event: Event) -> str:
    return frame(dumps(event), event=event["type"])
