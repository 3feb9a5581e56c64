"""Retries, backoffs and deadlines of both clients, with a scripted clock and a scripted server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from splitfuse.client import APIConnectionError, APITimeoutError, BadRequestError, QueueFullError, ServerError
from splitfuse.client.retry import RetryPolicy, read_retry_after

from .callers import AsyncCaller, Caller
from .conftest import MakeCaller

Reply = httpx.Response | BaseException


class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Body of an answer in chunks; an exception among the chunks is raised."""

    def __init__(self, *chunks: bytes | Exception) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


def accepted() -> httpx.Response:
    return httpx.Response(202, content=b'{"seq_id": "s"}')


def running() -> httpx.Response:
    return httpx.Response(200, content=b'{"seq_id": "s", "status": "running", "text": "a"}')


def done() -> httpx.Response:
    return httpx.Response(200, content=b'{"seq_id": "s", "status": "completed", "text": "ab"}')


def stream(*chunks: bytes | Exception) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, stream=Stream(*chunks))


def refused(status: int, retry_after: str | None = None) -> httpx.Response:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return httpx.Response(status, headers=headers, content=b'{"error": {"message": "no"}}')


def gone() -> Exception:
    return httpx.ConnectError("gone")


class World:
    """World with a clock that sleeps and polls move forward, and a server that replies from a script."""

    def __init__(self, make_caller: MakeCaller) -> None:
        self.now = 100.0
        self.backoffs: list[float] = []
        self.requests: list[httpx.Request] = []
        self.replies: Iterator[Reply] | Callable[[httpx.Request], Reply] = iter(())
        self._make_caller = make_caller

    def caller(
        self, replies: list[Reply] | Callable[[httpx.Request], Reply], *, jitter: float = 1.0, **limits: Any
    ) -> Caller:
        """Return a caller that receives these replies; `limits` are the retry policy's."""
        self.replies = iter(replies) if isinstance(replies, list) else replies
        caller = self._make_caller("http://scripted", transport=httpx.MockTransport(self._reply))
        caller.client.retry_policy = RetryPolicy(clock=lambda: self.now, jitter=lambda: jitter, **limits)
        getattr(caller.client, "_core", caller.client)._io.sleep = self._sleep
        return caller

    def _reply(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        reply = self.replies(request) if callable(self.replies) else next(self.replies)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def _sleep(self, seconds: float) -> None:
        self.backoffs.append(seconds)
        self.now += seconds

    @property
    def sent(self) -> list[str]:
        return [f"{request.method} {request.url.raw_path.decode()}" for request in self.requests]


@pytest.fixture
def world(make_caller: MakeCaller) -> World:
    return World(make_caller)


def result(caller: Caller, wait: float | None = None, seq_id: str = "s") -> Any:
    return caller.result(caller.client.job(seq_id), wait)


def follow(caller: Caller) -> list[Any]:
    return caller.events(caller.client.job("s").stream())


def test_retry_after_is_honoured_and_backoffs_double(world: World) -> None:
    replies = [refused(429, "3"), refused(503, "0"), refused(429), refused(503), accepted()]
    assert world.caller(replies).submit("x").seq_id == "s"
    assert world.backoffs == [3.0, 0.5, 1.0, 2.0]
    assert world.sent == ["POST /generate"] * 5


def test_jitter_spreads_the_backoffs_between_half_and_whole(world: World) -> None:
    world.caller([refused(429), refused(429), accepted()], jitter=0.0).submit("x")
    assert world.backoffs == [0.125, 0.25]


def test_retries_are_counted(world: World) -> None:
    with pytest.raises(QueueFullError):
        world.caller([refused(429) for _ in range(9)], max_retries=2).submit("x")
    assert len(world.backoffs) == 2


def test_a_backoff_that_ends_after_the_deadline_is_not_taken(world: World) -> None:
    with pytest.raises(QueueFullError) as caught:
        world.caller([refused(429, "4") for _ in range(9)], timeout=10).submit("x")
    assert world.backoffs == [4.0, 4.0]
    assert caught.value.retry_after == 4.0


@pytest.mark.parametrize("status", [400, 500, 502])
def test_other_refusals_are_final(world: World, status: int) -> None:
    with pytest.raises((BadRequestError, ServerError)):
        world.caller([refused(status, "1")]).submit("x")
    assert world.backoffs == []


def test_a_submit_without_an_answer_is_repeated_with_its_key(world: World) -> None:
    keys = []

    def replies(request: httpx.Request) -> httpx.Response | Exception:
        keys.append(request.headers["idempotency-key"])
        return gone() if len(keys) in (1, 2, 4) else accepted()

    caller = world.caller(replies)
    caller.submit("x")
    caller.submit("x")
    assert (keys[0] == keys[1] == keys[2], keys[3] == keys[4], len(set(keys))) == (True, True, 2)
    assert world.backoffs == [0.25, 0.5, 0.25]


def test_a_cancellation_without_an_answer_is_not_repeated(world: World) -> None:
    caller = world.caller([gone()])
    with pytest.raises(APIConnectionError):
        caller.run(caller.client.job("s").cancel())
    assert world.backoffs == []


def test_a_read_without_an_answer_is_repeated(world: World) -> None:
    assert result(world.caller([gone(), gone(), done()])).text == "ab"
    assert world.backoffs == [0.25, 0.5]
    with pytest.raises(APIConnectionError):
        result(world.caller([gone() for _ in range(9)], max_retries=3))
    assert world.backoffs[2:] == [0.25, 0.5, 1.0]


def polls(world: World, finished_at: float) -> Callable[[httpx.Request], httpx.Response]:
    """Return the replies of a server that honours `wait`, and finishes at that time."""

    def reply(request: httpx.Request) -> httpx.Response:
        wait = float(request.url.params.get("wait", 0))
        world.now = max(world.now, min(world.now + wait, finished_at))
        return done() if world.now >= finished_at else running()

    return reply


def test_waiting_polls_half_a_minute_at_a_time(world: World) -> None:
    assert result(world.caller(polls(world, 170.0), timeout=None)).text == "ab"
    assert world.sent == ["GET /result/s?wait=30"] * 3
    assert world.backoffs == []


def test_waiting_past_the_deadline_is_an_error_but_a_stated_wait_is_not(world: World) -> None:
    caller = world.caller(polls(world, 999.0), timeout=50)
    with pytest.raises(APITimeoutError):
        result(caller)
    assert world.now == 150.0
    assert result(caller, 90).status == "running"
    assert world.now == 195.0


def test_no_wait_is_one_question(world: World) -> None:
    assert result(world.caller([running()]), 0, "a/b?").text == "a"
    assert world.sent == ["GET /result/a%2Fb%3F"]


def test_polls_that_come_back_early_are_spaced_out(world: World) -> None:
    result(world.caller([*(running() for _ in range(6)), done()]))
    assert world.backoffs == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]


def event(number: int) -> bytes:
    return b'id: %d\nevent: token\ndata: {"text": "%d"}\n\n' % (number, number)


LAST = b'id: 9\nevent: done\ndata: {"seq_id": "s", "status": "completed"}\n\n'


def test_progress_renews_the_retries_of_a_stream(world: World) -> None:
    replies: list[Reply] = []
    for number in range(9):
        replies += [gone(), stream(event(number))]
    events = follow(world.caller([*replies, stream(LAST)], max_retries=2))
    assert events[-1].result.status == "completed"
    assert world.backoffs == [0.25] + [0.25, 0.5] * 8 + [0.25]


def test_events_that_come_again_are_dropped(world: World) -> None:
    again = event(0) + event(1) + event(2)
    events = follow(world.caller([stream(event(0) + event(1)), stream(again, LAST)]))
    assert [event.text for event in events] == ["0", "1", "2", ""]
    assert [request.headers.get("last-event-id") for request in world.requests] == [None, "1"]


def test_a_silent_connection_is_dropped_and_opened_again(world: World) -> None:
    replies: list[Reply] = [stream(event(0), httpx.ReadTimeout("silent")), stream(LAST)]
    assert follow(world.caller(replies, timeout=None))[-1].result.is_finished
    assert [request.extensions["timeout"]["read"] for request in world.requests] == [40.0, 40.0]


def test_an_event_of_an_unknown_kind_is_skipped(world: World) -> None:
    news = b"id: 0\nevent: news\ndata: not even JSON\n\n"
    (event,) = follow(world.caller([stream(news, LAST)]))
    assert event.result.is_finished


def test_a_stream_of_tokens_ends_at_the_deadline(world: World) -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        world.now += 20.0
        return stream(event(len(world.requests)))

    with pytest.raises(APITimeoutError):
        follow(world.caller(reply, timeout=50))
    assert world.now <= 150.0 + 20.0


def test_leaving_sends_one_delete_even_if_that_fails(world: World) -> None:
    caller = world.caller([])
    left = asyncio.CancelledError() if isinstance(caller, AsyncCaller) else KeyboardInterrupt()
    world.replies = iter([accepted(), left, gone()])
    with pytest.raises(type(left)):
        caller.events(caller.stream("x"))
    assert world.sent == ["POST /generate", "GET /result/s/stream", "DELETE /result/s"]


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None), ("7", 7.0), (" 7 ", 7.0), ("-1", None), ("soon", None), ("", None),
        ("Fri, 02 Jan 2026 03:04:15 GMT", 10.0), ("Fri, 02 Jan 2026 03:04:15 -0000", 10.0),
        ("Fri, 02 Jan 2026 03:00:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_retry_after_in_both_forms(header: str | None, seconds: float | None) -> None:
    assert read_retry_after(header, NOW) == seconds
