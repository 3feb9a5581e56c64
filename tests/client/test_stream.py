"""Streams of both clients: every text exactly once however the connection breaks, and leaving early."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

from splitfuse.client import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AsyncClient,
    Client,
    NotFoundError,
    ServerError,
    StreamEvent,
)

from .callers import Caller
from .conftest import MakeCaller
from .stand_in import CHUNKS, SEQ_ID, TEXT, Cut, Script, StandIn, page, refusal


def text_of(events: list[StreamEvent]) -> str:
    """Return the text that a user would print."""
    return "".join(event.text for event in events)


def test_stream_yields_deltas_and_ends_with_the_result(caller: Caller, script: Script) -> None:
    stream = caller.stream("text", max_tokens=8)
    assert stream.seq_id == SEQ_ID
    events = caller.events(stream)
    assert [event.text for event in events] == [*CHUNKS, ""]
    assert [event.token_ids for event in events] == [*([i] for i in range(len(CHUNKS))), []]
    assert {event.index for event in events} == {0}
    assert [event.id for event in events] == list(range(len(CHUNKS) + 1))
    assert [event.type for event in events] == ["token"] * len(CHUNKS) + ["done"]
    assert events[-1].result is not None
    assert events[-1].result.text == TEXT
    assert stream.result == events[-1].result
    assert caller.events(stream) == []
    assert not script.cancelled.is_set()


@pytest.mark.parametrize("how", ["broken", "ended", "inside an event", "inside a character"])
@pytest.mark.parametrize("events", range(len(CHUNKS) + 1))
def test_a_stream_cut_anywhere_tells_every_text_once(caller: Caller, script: Script, events: int, how: str) -> None:
    script.cuts.append(Cut(events, how))  # type: ignore[arg-type]
    got = caller.events(caller.client.job(SEQ_ID).stream())
    assert [event.text for event in got] == [*CHUNKS, ""]
    assert [headers.get("last-event-id") for headers in script.headers] == [None, str(events - 1) if events else None]


def test_a_stream_cut_after_every_event_tells_every_text_once(caller: Caller, script: Script) -> None:
    script.cuts.extend([Cut(1)] * len(CHUNKS))
    stream = caller.stream("text")
    assert text_of(caller.events(stream)) == TEXT
    assert stream.result is not None
    assert len(script.paths("GET")) == len(CHUNKS) + 1
    assert len(script.paths("POST")) == 1


def test_a_stream_without_progress_ends_after_the_retries(make_caller: MakeCaller, stand_in: StandIn) -> None:
    caller = make_caller(stand_in.url, max_retries=2)
    stand_in.script.cuts.extend([Cut(2), *[Cut(0)] * 20])
    with pytest.raises(APIConnectionError):
        caller.events(caller.client.job(SEQ_ID).stream())
    assert len(stand_in.script.paths("GET")) == 1 + 2


def test_a_busy_server_gets_the_stream_request_again(caller: Caller, script: Script) -> None:
    script.cuts.append(Cut(3))
    script.faults["stream"].extend([refusal(503, retry_after="0"), refusal(429, retry_after="0")])
    assert text_of(caller.events(caller.stream("text"))) == TEXT


def test_a_result_that_expired_meanwhile_is_not_found(caller: Caller, script: Script) -> None:
    script.faults["stream"].append(refusal(404, kind="not_found_error"))
    with pytest.raises(NotFoundError):
        caller.events(caller.client.job(SEQ_ID).stream())


def test_an_html_page_is_not_a_stream(caller: Caller, script: Script) -> None:
    script.faults["stream"].append(page())
    with pytest.raises(APIError, match="text/event-stream"):
        caller.events(caller.client.job(SEQ_ID).stream())


def test_an_error_in_the_stream_is_raised_after_the_texts_before_it(caller: Caller, script: Script) -> None:
    script.stream_error = {"message": "it broke", "type": "server_error", "param": None, "code": "nan"}
    stream = caller.stream("text")
    assert text_of(caller.events(stream, at_most=len(CHUNKS))) == TEXT
    with pytest.raises(ServerError, match="it broke"):
        caller.events(caller.stream("text"))


def test_leaving_a_stream_early_cancels_what_it_submitted(caller: Caller, script: Script) -> None:
    script.hold_after = 2
    stream = caller.stream("text")
    assert [event.text for event in caller.events(stream, at_most=2)] == CHUNKS[:2]
    assert script.paths("DELETE") == [f"/result/{SEQ_ID}"]
    assert stream.result is None
    assert caller.events(stream) == []


def test_leaving_a_job_s_stream_early_cancels_nothing(caller: Caller, script: Script) -> None:
    caller.events(caller.client.job(SEQ_ID).stream(), at_most=1)
    assert script.paths("DELETE") == []


def test_leaving_at_the_last_event_cancels_nothing(caller: Caller, script: Script) -> None:
    events = caller.events(caller.stream("text"), at_most=len(CHUNKS) + 1)
    assert events[-1].result is not None
    assert script.paths("DELETE") == []


def test_closing_the_client_ends_its_streams(make_caller: MakeCaller, stand_in: StandIn) -> None:
    stand_in.script.hold_after = 1
    caller = make_caller(stand_in.url)
    stream = caller.stream("text")
    caller.run(caller.client.close())
    assert stand_in.script.paths("DELETE") == [f"/result/{SEQ_ID}"]
    assert caller.events(stream) == []


def test_a_silent_stream_ends_at_the_deadline(make_caller: MakeCaller, stand_in: StandIn) -> None:
    stand_in.script.hold_after = 2
    caller = make_caller(stand_in.url, timeout=1)
    with pytest.raises(APITimeoutError):
        caller.events(caller.stream("text"))
    assert stand_in.script.cancelled.is_set()


def test_a_stream_can_begin_after_an_event(caller: Caller, script: Script) -> None:
    events = caller.events(caller.client.job(SEQ_ID).stream(starting_after=5))
    assert [event.text for event in events] == [*CHUNKS[6:], ""]


def test_break_in_a_for_loop_cancels(stand_in: StandIn) -> None:
    stand_in.script.hold_after = 1
    with Client(stand_in.url) as client:
        for _ in client.stream("text"):
            break
        assert stand_in.script.cancelled.wait(60)
        with client.stream("text") as stream:
            next(stream)
        assert len(stand_in.script.paths("DELETE")) == 2


def test_a_stream_that_another_thread_closes_ends(stand_in: StandIn) -> None:
    stand_in.script.hold_after = 2
    with Client(stand_in.url) as client, ThreadPoolExecutor(1) as pool:
        stream = client.stream("text")
        next(stream)
        rest = pool.submit(list, stream)
        assert not stand_in.script.cancelled.is_set()
        stream.close()
        assert [event.text for event in rest.result(10)] in ([CHUNKS[1]], [])
    assert stand_in.script.paths("DELETE") == [f"/result/{SEQ_ID}"]


async def test_break_in_an_async_for_loop_cancels(stand_in: StandIn) -> None:
    stand_in.script.hold_after = 1
    async with AsyncClient(stand_in.url) as client:
        async for _ in client.stream("text"):
            break
        gc.collect()  # collects the dropped stream
    assert stand_in.script.paths("DELETE") == [f"/result/{SEQ_ID}"]
    async with AsyncClient(stand_in.url) as client, client.stream("text") as stream:
        await anext(stream)
    assert len(stand_in.script.paths("DELETE")) == 2


async def test_a_stream_that_another_task_closes_ends(stand_in: StandIn) -> None:
    stand_in.script.hold_after = 2
    async with AsyncClient(stand_in.url) as client:
        stream = await client.stream("text")
        first_event = asyncio.Event()

        async def read() -> int:
            num_events = 0
            async for _ in stream:
                first_event.set()
                num_events += 1
            return num_events

        reader = asyncio.create_task(read())
        await first_event.wait()
        await stream.close()
        assert await asyncio.wait_for(reader, 60) <= 2
    assert stand_in.script.paths("DELETE") == [f"/result/{SEQ_ID}"]


async def test_a_cancelled_task_cancels_its_request(stand_in: StandIn) -> None:
    stand_in.script.unfinished_polls, stand_in.script.honours_wait = 1000, True
    async with AsyncClient(stand_in.url) as client:
        task = asyncio.create_task(client.generate("text"))
        assert await asyncio.to_thread(stand_in.script.polled.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert stand_in.script.paths("DELETE") == [f"/result/{SEQ_ID}"]


async def test_many_requests_run_side_by_side(stand_in: StandIn) -> None:
    async with AsyncClient(stand_in.url) as client:
        results = await asyncio.gather(*(client.generate("text") for _ in range(50)))
    assert {result.text for result in results} == {TEXT}
