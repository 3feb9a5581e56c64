"""Parser of events on the WHATWG standard's own examples, with chunks that end at every place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitfuse.client.sse import ServerSentEvent, SSEParser


def parse(*chunks: bytes) -> list[ServerSentEvent]:
    """Return all events of one stream."""
    parser = SSEParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


CASES = {
    b"data: YHOO\ndata: +2\ndata: 10\n\n": [ServerSentEvent("YHOO\n+2\n10")],
    b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n": [
        ServerSentEvent("first event", id="1"),
        ServerSentEvent("second event", id=""),
        ServerSentEvent(" third event"),
    ],
    b"data\n\ndata\ndata\n\ndata:": [ServerSentEvent(""), ServerSentEvent("\n")],
    b"data:test\n\ndata: test\n\n": [ServerSentEvent("test"), ServerSentEvent("test")],
    b"event: add\ndata: 1\n\ndata: 2\n\n": [ServerSentEvent("1", "add"), ServerSentEvent("2")],
    b"event: alone\nid: 3\n\ndata: 2\n\n": [ServerSentEvent("2")],
    b"data: a\r\ndata: b\r\rdata: c\n\r\n": [ServerSentEvent("a\nb"), ServerSentEvent("c")],
    b"\xef\xbb\xbfdata: after a mark\n\ndata: \xef\xbb\xbf\n\n": [
        ServerSentEvent("after a mark"),
        ServerSentEvent("\ufeff"),
    ],
    b"retry: 5\nnonsense\nDATA: no\ndata : no\nid: 1\0\ndata: a:b: c\n\n": [ServerSentEvent("a:b: c")],
    "data: naïve 🐢\u2028\u0085 one line\n\n".encode(): [ServerSentEvent("naïve 🐢\u2028\u0085 one line")],
    b"data: half \xf0\x9f\n\n": [ServerSentEvent("half \ufffd")],
    b"data: never ended\n": [],
    b"": [],
}


@pytest.mark.parametrize("stream", CASES, ids=repr)
def test_events_of_a_whole_stream(stream: bytes) -> None:
    assert parse(stream) == CASES[stream]


@pytest.mark.parametrize("stream", CASES, ids=repr)
def test_chunks_may_end_anywhere(stream: bytes) -> None:
    expected = CASES[stream]
    assert parse(*(bytes([byte]) for byte in stream)) == expected
    for at in range(len(stream)):
        assert parse(stream[:at], b"", stream[at:]) == expected


def test_an_event_comes_with_the_chunk_that_ends_it() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\r\n\r") == [ServerSentEvent("a")]
    assert parser.feed(b"\ndata: b\r") == []
    assert parser.feed(b"\r") == [ServerSentEvent("b")]


@given(st.lists(st.sampled_from([b"data", b"id", b":", b" ", b"\r", b"\n", b"\r\n", b"\n\n", b"x", b"\xc3", b"\xa9"])))
def test_any_cutting_gives_the_same(chunks: list[bytes]) -> None:
    assert parse(*chunks) == parse(b"".join(chunks))
