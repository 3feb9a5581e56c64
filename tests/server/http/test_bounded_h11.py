"""The bounds on a request's head are exact, in whatever pieces it arrives."""

import h11
import pytest

from splitfuse.server.http.bounded_h11 import MAX_HEAD_BYTES, MAX_HEADERS, BoundedH11

LINE = b"GET /version HTTP/1.1\r\nHost: x\r\n"
PIECES = [1, 7, 1000, 16 * 1024, 10**6]


def head_of(num_bytes):
    """Return a head of exactly `num_bytes` bytes."""
    value = b"a" * (num_bytes - len(LINE) - len(b"X-Big: \r\n\r\n"))
    return LINE + b"X-Big: " + value + b"\r\n\r\n"


def parse(data, *, piece, conn=None):
    """Return the first event."""
    conn = conn or BoundedH11()
    for start in range(0, len(data), piece):
        conn.receive_data(data[start : start + piece])
        event = conn.next_event()
        if event is not h11.NEED_DATA:
            return event
    return h11.NEED_DATA


def refusal(data, *, piece=10**6, conn=None):
    """Parse bad data and return the fault that was found."""
    conn = conn or BoundedH11()
    with pytest.raises(h11.RemoteProtocolError):
        parse(data, piece=piece, conn=conn)
    return conn.fault


@pytest.mark.parametrize("piece", PIECES)
def test_a_head_of_32_kib_and_not_a_byte_more(piece):
    assert isinstance(parse(head_of(MAX_HEAD_BYTES), piece=piece), h11.Request)
    for num_bytes in (MAX_HEAD_BYTES + 1, 40 * 1024, 2**20):
        assert f"longer than {MAX_HEAD_BYTES} bytes" in refusal(head_of(num_bytes), piece=piece)


@pytest.mark.parametrize("piece", PIECES)
def test_100_headers_and_not_one_more(piece):
    def head(num):
        return LINE + b"".join(b"a%d:b\r\n" % i for i in range(num - 1)) + b"\r\n"

    assert isinstance(parse(head(MAX_HEADERS), piece=piece), h11.Request)
    assert "101 headers; at most 100" in refusal(head(MAX_HEADERS + 1), piece=piece)


def test_what_stands_behind_a_head_does_not_count():
    body = b"x" * 100_000
    line = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    assert isinstance(parse(line + body, piece=10**6), h11.Request)


def test_a_pipelined_head_has_the_same_bounds():
    for num_bytes, is_taken in ((MAX_HEAD_BYTES, True), (MAX_HEAD_BYTES + 1, False)):
        conn = BoundedH11()
        assert isinstance(parse(LINE + b"\r\n" + head_of(num_bytes), piece=10**6, conn=conn), h11.Request)
        assert isinstance(conn.next_event(), h11.EndOfMessage)
        conn.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        conn.send(h11.EndOfMessage())
        conn.start_next_cycle()
        if is_taken:
            assert isinstance(conn.next_event(), h11.Request)
        else:
            assert "longer than" in refusal(b"x", conn=conn)


@pytest.mark.parametrize("version", ["0.9", "2.0", "3.1"])
def test_other_versions_are_refused(version):
    assert f"HTTP/{version} is not supported" in refusal(b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % version.encode())


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_every_minor_version_of_1(version):
    assert isinstance(parse(b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % version.encode(), piece=99), h11.Request)
