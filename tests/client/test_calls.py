"""Retries, pauses and deadlines, with a clock of our own and nothing sent."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from splitfuse.client import APIConnectionError, APITimeoutError, BadRequestError, QueueFullError, ServerError
from splitfuse.client import calls as client_calls
from splitfuse.client.actions import Open, Read, Send, Sleep, Steps
from splitfuse.client.messages import Answer, seconds_to_wait
from splitfuse.client.retry import Patience

ACCEPTED = Answer(202, {}, b'{"seq_id": "s"}')
RUNNING = Answer(200, {}, b'{"seq_id": "s", "status": "running", "text": "a"}')
DONE = Answer(200, {}, b'{"seq_id": "s", "status": "completed", "text": "ab"}')
STREAM = Answer(200, {"content-type": "text/event-stream; charset=utf-8"})


class World:
    """A clock that sleeping and waiting for answers move, and the actions that were performed."""

    def __init__(self) -> None:
        self.now = 100.0
        self.actions: list[Any] = []

    def patience(self, **changes: Any) -> Patience:
        return Patience(**{"clock": lambda: self.now, "chance": lambda: 1.0, **changes})

    def run(self, steps: Steps[Any], replies: list[Any] | Callable[[Any], Any]) -> Any:
        """Play the steps; an exception among the replies is thrown in. Returns what they return."""
        script = iter(replies) if isinstance(replies, list) else None
        action = next(steps)
        try:
            while True:
                self.actions.append(action)
                reply = None
                if isinstance(action, Sleep):
                    self.now += action.seconds
                elif isinstance(action, Send | Open | Read):
                    reply = next(script) if script else replies(action)  # type: ignore[operator]
                action = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
        except StopIteration as stop:
            return stop.value

    @property
    def pauses(self) -> list[float]:
        return [action.seconds for action in self.actions if isinstance(action, Sleep)]

    @property
    def sent(self) -> list[str]:
        return [f"{a.request.method} {a.request.path}" for a in self.actions if isinstance(a, Send | Open)]


def refused(status: int, retry_after: str | None = None) -> Answer:
    return Answer(status, {} if retry_after is None else {"retry-after": retry_after}, b'{"error": {"message": "no"}}')


@pytest.fixture
def world() -> World:
    return World()


def test_retry_after_is_honoured_and_pauses_double(world: World) -> None:
    replies = [refused(429, "3"), refused(503, "0"), refused(429), refused(503), ACCEPTED]
    assert world.run(client_calls.submit_alone("x", {}, world.patience()), replies) == "s"
    assert world.pauses == [3.0, 0.5, 1.0, 2.0]
    assert world.sent == ["POST /generate"] * 5


def test_chance_spreads_the_pauses_between_half_and_whole(world: World) -> None:
    patience = world.patience(chance=lambda: 0.0)
    world.run(client_calls.submit_alone("x", {}, patience), [refused(429), refused(429), ACCEPTED])
    assert world.pauses == [0.125, 0.25]


def test_retries_are_counted(world: World) -> None:
    with pytest.raises(QueueFullError):
        world.run(client_calls.submit_alone("x", {}, world.patience(max_retries=2)), [refused(429)] * 9)
    assert len(world.pauses) == 2


def test_a_pause_that_ends_after_the_deadline_is_not_taken(world: World) -> None:
    with pytest.raises(QueueFullError) as caught:
        world.run(client_calls.submit_alone("x", {}, world.patience(timeout=10)), [refused(429, "4")] * 9)
    assert world.pauses == [4.0, 4.0]
    assert caught.value.retry_after == 4.0


@pytest.mark.parametrize("status", [400, 500, 502])
def test_other_refusals_are_final(world: World, status: int) -> None:
    with pytest.raises((BadRequestError, ServerError)):
        world.run(client_calls.submit_alone("x", {}, world.patience()), [refused(status, "1")])
    assert world.pauses == []


def test_a_submit_that_nobody_answered_is_not_repeated(world: World) -> None:
    with pytest.raises(APIConnectionError):
        world.run(client_calls.submit_alone("x", {}, world.patience()), [APIConnectionError("gone")])
    with pytest.raises(APIConnectionError):
        world.run(client_calls.cancel("s", world.patience()), [APIConnectionError("gone")])
    assert world.pauses == []


def test_a_read_that_nobody_answered_is_repeated(world: World) -> None:
    gone = APIConnectionError("gone")
    assert world.run(client_calls.wait("s", None, world.patience()), [gone, gone, DONE]).text == "ab"
    assert world.pauses == [0.25, 0.5]
    with pytest.raises(APIConnectionError):
        world.run(client_calls.wait("s", None, world.patience(max_retries=3)), [gone] * 9)
    assert world.pauses[2:] == [0.25, 0.5, 1.0]


def polls(world: World, finished_at: float) -> Callable[[Any], Answer]:
    """A server that honours `wait`, and finishes at that time."""

    def reply(action: Send) -> Answer:
        wait = float(action.request.path.partition("wait=")[2] or 0)
        world.now = max(world.now, min(world.now + wait, finished_at))
        return DONE if world.now >= finished_at else RUNNING

    return reply


def test_waiting_polls_half_a_minute_at_a_time(world: World) -> None:
    result = world.run(client_calls.wait("s", None, world.patience(timeout=None)), polls(world, 170.0))
    assert result.text == "ab"
    assert world.sent == ["GET /result/s?wait=30"] * 3
    assert world.pauses == []


def test_waiting_past_the_deadline_is_an_error_but_a_stated_wait_is_not(world: World) -> None:
    with pytest.raises(APITimeoutError):
        world.run(client_calls.wait("s", None, world.patience(timeout=50)), polls(world, 999.0))
    assert world.now == 150.0
    assert world.run(client_calls.wait("s", 90, world.patience(timeout=50)), polls(world, 999.0)).status == "running"
    assert world.now == 195.0


def test_no_wait_is_one_question(world: World) -> None:
    assert world.run(client_calls.wait("a/b?", 0, world.patience()), [RUNNING]).text == "a"
    assert world.sent == ["GET /result/a%2Fb%3F"]


def test_polls_that_come_back_early_are_spaced_out(world: World) -> None:
    world.run(client_calls.wait("s", None, world.patience()), [RUNNING] * 6 + [DONE])
    assert world.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]


def event(number: int) -> bytes:
    return b'id: %d\nevent: token\ndata: {"text": "%d"}\n\n' % (number, number)


LAST = b'id: 9\nevent: done\ndata: {"seq_id": "s", "status": "completed"}\n\n'


def test_progress_refreshes_the_patience_with_a_stream(world: World) -> None:
    replies: list[Any] = []
    for number in range(9):
        replies += [APIConnectionError("gone"), STREAM, event(number), None]
    result = world.run(client_calls.follow("s", None, world.patience(max_retries=2)), [*replies, STREAM, LAST])
    assert result.status == "completed"
    assert world.pauses == [0.25] + [0.25, 0.5] * 8 + [0.25]


def test_events_that_come_again_are_dropped(world: World) -> None:
    again = event(0) + event(1) + event(2)
    world.run(
        client_calls.follow("s", None, world.patience()), [STREAM, event(0) + event(1), None, STREAM, again, LAST]
    )
    texts = [action.text for action in world.actions if hasattr(action, "text")]
    assert texts == ["0", "1", "2", ""]
    opened = [action.request.headers for action in world.actions if isinstance(action, Open)]
    assert [headers.get("last-event-id") for headers in opened] == [None, "1"]


def test_a_silent_connection_is_dropped_and_opened_again(world: World) -> None:
    replies = [STREAM, event(0), APITimeoutError("silent"), STREAM, LAST]
    assert world.run(client_calls.follow("s", None, world.patience(timeout=None)), replies).is_finished
    assert {action.timeout for action in world.actions if isinstance(action, Read)} == {40.0}


def test_an_event_of_an_unknown_kind_is_passed_over(world: World) -> None:
    news = b"id: 0\nevent: news\ndata: not even JSON\n\n"
    assert world.run(client_calls.follow("s", None, world.patience()), [STREAM, news, LAST]).is_finished


def test_leaving_sends_one_delete_whatever_comes_of_it(world: World) -> None:
    steps = client_calls.stream("x", {}, world.patience())
    assert isinstance(next(steps), Send)
    steps.send(ACCEPTED)
    left = steps.throw(KeyboardInterrupt())
    assert isinstance(left, Send)
    assert (left.request.method, left.request.path) == ("DELETE", "/result/s")
    with pytest.raises(KeyboardInterrupt):
        steps.throw(APIConnectionError("gone"))


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("-1", None),
        ("soon", None),
        ("", None),
        ("Fri, 02 Jan 2026 03:04:15 GMT", 10.0),
        ("Fri, 02 Jan 2026 03:04:15 -0000", 10.0),
        ("Fri, 02 Jan 2026 03:00:00 GMT", 0.0),
    ],
)
def test_retry_after_in_both_spellings(header: str | None, seconds: float | None) -> None:
    assert seconds_to_wait(header, NOW) == seconds
