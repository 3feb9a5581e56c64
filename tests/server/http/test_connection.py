"""Bytes that are not yet a request: broken, oversized and slow heads and bodies, on a raw socket."""

import asyncio
import contextlib
import gc
import json
import re
import socket
import weakref

import httpx
import pytest

from splitfuse.server.http.connection import Connection
from splitfuse.server.settings import Settings

LAST = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@contextlib.asynccontextmanager
async def connected(served):
    """Yield the loop and a socket that is connected to the server."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", httpx.URL(served.url).port))
        yield loop, client


async def exchange(served, *parts):
    """Send the parts, then return what comes back until the server closes, be it before it has read them all."""
    async with connected(served) as (loop, client):
        with contextlib.suppress(ConnectionError):
            for part in parts:
                await loop.sock_sendall(client, part)
        return await all_received(loop, client)


async def all_received(loop, client):
    received = b""
    with contextlib.suppress(ConnectionError):  # a stream of asyncio would drop what came before a reset
        while block := await asyncio.wait_for(loop.sock_recv(client, 2**16), 60):
            received += block
    return received


def error_of(raw):
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


async def test_a_target_may_be_a_whole_address(served):
    """A proxy may send it; its host counts, not that of Host."""
    for target, status in [
        *((b"http://localhost/version", 200), (b"HTTP://127.0.0.1:80/result/x?wait=1", 404)),
        *((b"https://localhost?a=1", 200), (b"http://evil.example/result/x", 403), (b"ftp://localhost/version", 403)),
    ]:
        raw = await exchange(served, LAST.replace(b"/version", target, 1))
        assert int(raw.split()[1]) == status, (target, raw)


async def test_a_closed_connection_is_freed_without_a_collection(served, monkeypatch):
    """As a cycle each would keep 1 KB until a full collection, which a busy server puts off for minutes."""
    transports, made, lost = [], Connection.connection_made, asyncio.Event()
    is_lost = Connection.connection_lost

    def connection_made(self, transport):
        transports.append(weakref.ref(transport))
        made(self, transport)

    def connection_lost(self, exc):
        is_lost(self, exc)
        lost.set()

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    monkeypatch.setattr(Connection, "connection_lost", connection_lost)
    gc.collect()
    gc.disable()
    try:
        assert (await exchange(served, LAST)).startswith(b"HTTP/1.1 200")
        await lost.wait()
        for _ in range(5):  # the loop's last callbacks
            await asyncio.sleep(0)
        assert [transport() for transport in transports] == [None]
    finally:
        gc.enable()


async def test_an_idle_connection_outlives_those_of_clients(served, monkeypatch):
    """Go and Traefik keep a connection for 90 s, Azure for 120: who closes first must be the client."""
    connections, made = [], Connection.connection_made

    def connection_made(self, transport):
        connections.append(self)
        made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    for _ in range(2):
        assert (await served.client.get("/version")).status_code == 200
        (connection,) = connections
        timers = [timer for timer in vars(connection).values() if isinstance(timer, asyncio.TimerHandle)]
        assert [timer.when() - asyncio.get_running_loop().time() > 125 for timer in timers] == [True]


async def test_no_http(served):
    for head in (b"nonsense", b"GET / FTP/1.1", b"GET /\x00 HTTP/1.1\r\nHost: localhost"):
        assert error_of(await exchange(served, head + b"\r\n\r\n"))[0] == 400, head


GET = b"GET /version HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("before", [b"", GET + b"\r\n"])
@pytest.mark.parametrize("num_bytes", [64 * 1024, 2**24])
async def test_head_too_large(served, monkeypatch, num_bytes, before):
    """A client may send all of it before it reads: what comes after the refusal is dropped, and resets nothing."""
    monkeypatch.setattr("splitfuse.server.http.connection.REFUSED_S", 60.0)
    async with connected(served) as (loop, client):
        await loop.sock_sendall(client, before + GET + b"X-Big: " + b"a" * num_bytes + b"\r\n\r\n")
        received = await all_received(loop, client)
    assert (received.count(b"HTTP/1.1 200 "), received.count(b"HTTP/1.1 400 ")) == (bool(before), 1)
    assert b"longer than 32768 bytes" in received


async def test_a_client_that_never_stops_sending_is_cut_off(served, monkeypatch):
    monkeypatch.setattr("splitfuse.server.http.connection.REFUSED_S", 0.1)
    async with connected(served) as (loop, client), asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            while True:
                await loop.sock_sendall(client, b"nonsense\r\n\r\n")
                await asyncio.sleep(0)
    assert (await served.client.get("/version")).status_code == 200


@pytest.mark.parametrize("head", [b"nonsense\r\n\r\n", GET + b"a:\r\n" * 101 + b"\r\n"])
async def test_a_shutdown_closes_a_refused_connection(served, monkeypatch, head):
    monkeypatch.setattr("splitfuse.server.http.connection.REFUSED_S", 60.0)
    made, refused = Connection.connection_made, []
    monkeypatch.setattr(Connection, "connection_made", lambda self, via: (refused.append(self), made(self, via)))
    async with connected(served) as (loop, client):
        await loop.sock_sendall(client, head)
        assert b"400 Bad Request" in await loop.sock_recv(client, 2**16)
        assert not refused[0].transport.is_closing()
        refused[0].shutdown()  # as uvicorn calls it
        assert refused[0].transport.is_closing()


async def test_a_slow_head_is_cut_off(served, monkeypatch):
    monkeypatch.setattr("splitfuse.server.http.connection.HEAD_DEADLINE_S", 0.1)
    assert await exchange(served) == b""
    assert await exchange(served, b"GET /version HTTP/1.1\r\nHo") == b""
    first = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    raw = await exchange(served, first + b"GET /version HT")
    assert raw.startswith(b"HTTP/1.1 200")
    assert raw.count(b"HTTP/1.1") == 1


async def test_a_running_answer_outlives_the_head_deadline(served, monkeypatch):
    monkeypatch.setattr("splitfuse.server.http.connection.HEAD_DEADLINE_S", 0.05)
    served.engine.hold()
    url = (await served.client.post("/generate", json={"prompt": "x"})).json()["result_url"]
    assert (await served.client.get(url + "?wait=0.2")).status_code == 200


async def test_a_slow_body_is_cut_off(served, monkeypatch):
    monkeypatch.setattr("splitfuse.server.http.json_body.DEADLINE_S", 0.05)
    raw = await exchange(served, b'POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"prompt"')
    status, error = error_of(raw)
    assert (status, error["code"]) == (408, "body_too_slow")


LIMIT = [Settings(max_body_bytes=1000)]


@pytest.mark.parametrize("settings", LIMIT)
async def test_body_over_the_limit(served):
    async def parts():
        for _ in range(20):
            yield b" " * 100

    for path in ("/generate", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        for content in (b" " * 1001, parts()):
            response = await served.client.post(path, content=content)
            assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large"), path
    body = b'{"prompt": "' + b"x" * 400 + b'", "max_tokens": 1}'
    assert (await served.client.post("/generate", content=body.ljust(1000))).status_code == 202


@pytest.mark.parametrize("settings", LIMIT)
async def test_a_huge_body_is_refused_by_its_announcement(served):
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
    for number, status in ((10**9, 413), (10**19, 413), (10**30, 400)):
        assert error_of(await exchange(served, head % number + b"\r\n"))[0] == status
    raw = await exchange(served, head % 2000 + b"Expect: 100-continue\r\n\r\n")
    assert error_of(raw)[0] == 413  # and no 100 before it


@pytest.mark.parametrize("settings", LIMIT)
async def test_an_endless_body_is_cut_off(served):
    _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(served.url).port)
    writer.write(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"

    async def send_on():
        for _ in range(1000):
            writer.write(chunk)
            await writer.drain()

    with pytest.raises(ConnectionError):
        await send_on()
    writer.close()
    await served.client.get("/health")


async def test_a_stalled_reader_is_cut_off(served, monkeypatch):
    """The rest of the answer is far larger than the socket's buffers; the engine stops working for the reader."""
    monkeypatch.setattr("splitfuse.server.http.connection.STALL_S", 0.1)
    served.engine.hold()
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(served.url).port)
    fields = {"prompt": "hello", "max_tokens": 400, "n": 64, "logprobs": 20, "stream": True}
    body = json.dumps(fields).encode()
    writer.write(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    await served.engine.allow(20_000)
    await asyncio.wait_for(served.engine.abort_seen.wait(), 60)
    writer.close()


async def test_a_reader_that_stalls_before_the_end_is_cut_off(served, monkeypatch):
    """The answer is complete, and less of it is left than would stop its writer."""
    monkeypatch.setattr("splitfuse.server.http.connection.STALL_S", 0.1)
    monkeypatch.setattr("splitfuse.server.api.operations.package_version", lambda: "x" * 60_000)
    made, lost = Connection.connection_made, Connection.connection_lost
    is_lost = asyncio.Event()

    def connection_made(self, transport):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    def connection_lost(self, exc):
        lost(self, exc)
        is_lost.set()

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    monkeypatch.setattr(Connection, "connection_lost", connection_lost)
    for head in (LAST, LAST.replace(b"close", b"keep-alive")):
        is_lost.clear()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", httpx.URL(served.url).port))
            client.send(head)
            await asyncio.wait_for(is_lost.wait(), 60)


async def test_leaving_before_the_body_is_there(served, caplog):
    for part in (b"", b'{"prom'):
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(served.url).port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" + part)
        await writer.drain()
        writer.transport.abort()
    assert (await served.client.post("/generate", json={"prompt": "x", "max_tokens": 1})).status_code == 202
    assert "error" not in caplog.text.lower()
    assert served.engine.num_submitted == 1


async def test_content_type_does_not_matter(served):
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "nonsense", None):
        headers = {"Content-Type": content_type} if content_type else {}
        response = await served.client.post("/generate", content=b'{"prompt": "x"}', headers=headers)
        assert response.status_code == 202, content_type


async def test_pipelined_requests(served):
    one = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert (await exchange(served, one + one + last)).count(b"200 OK") == 3


async def test_streams_are_chunked_in_1_1_and_bare_in_1_0(served):
    body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": True}).encode()
    raws = []
    for version in (b"1.0", b"1.1"):
        head = (
            b"POST /v1/completions HTTP/"
            + version
            + b"\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        )
        raws.append(await exchange(served, head % len(body) + body))
    (bare_head, _, bare), (head, _, chunked) = (raw.partition(b"\r\n\r\n") for raw in raws)
    assert b"chunked" not in bare_head.lower()
    assert b"transfer-encoding: chunked" in head.lower()
    assert bare.startswith(b"data: {")
    assert bare.endswith(b"data: [DONE]\n\n")
    joined = b""
    while chunked:
        size, _, rest = chunked.partition(b"\r\n")
        joined += rest[: int(size, 16)]
        assert rest[int(size, 16) :].startswith(b"\r\n")
        chunked = rest[int(size, 16) + 2 :]
    assert (joined.count(b"\n\n"), joined[-14:]) == (bare.count(b"\n\n"), bare[-14:])


async def test_a_connection_goes_on_after_a_stream(served):
    body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    last = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    raw = await exchange(served, head + body + head + body + last)
    assert raw.count(b"data: [DONE]\n\n\r\n0\r\n\r\nHTTP/1.1 200 OK") == 2


async def test_a_stream_is_the_same_without_the_short_way(served, monkeypatch):
    """The second time uvicorn's inside is not what we know."""
    original = Connection.write_now
    written = []

    def write_now(self, data):
        written[-1] += data
        original(self, data)

    monkeypatch.setattr(Connection, "write_now", write_now)
    texts = []
    for _ in range(2):
        written.append(b"")
        fields = {"prompt": "x", "max_tokens": 3, "seed": 1, "stream": True}
        response = await served.client.post("/generate", json=fields)
        texts.append(response.text.partition("event: done")[0])
        monkeypatch.setattr(Connection, "_open_scope", lambda self: {})
    assert texts[0] == texts[1]
    assert [data.count(b"event: token") for data in written] == [3, 0]


async def test_a_refused_head_is_told_why(served):
    for lines, fault in [
        (b"X-Big: " + b"a" * 40 * 1024, "longer than 32768 bytes"),
        (b"a: b\r\n" * 6_000 + b"a: b", "longer than 32768 bytes"),
        (b"a:\r\n" * 6_000 + b"a:", "6002 headers; at most 100"),
    ]:
        raw = await exchange(served, b"GET /version HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n\r\n")
        status, error = error_of(raw)
        assert status == 400
        assert fault in error["message"]
    assert error_of(await exchange(served, b"HEAD /version HTTP/3.1\r\nHost: x\r\n\r\n"))[0] == 400


FEW = [Settings(max_connections=3)]


@pytest.mark.parametrize("settings", FEW)
async def test_a_connection_too_many_is_refused(served):
    await served.client.get("/version")  # the first one, which stays
    held = [await asyncio.open_connection("127.0.0.1", httpx.URL(served.url).port) for _ in range(2)]
    body = b'{"prompt": "x"}'
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    raw = await exchange(served, head, body)
    status, error = error_of(raw)
    assert (status, error["code"]) == (503, "too_many_connections")
    assert "--max-connections" in error["message"]
    assert b"connection: close" in raw.lower()
    assert b"retry-after: 2" in raw.lower()
    assert "splitfuse:connections_refused_total" in (text := (await served.client.get("/metrics")).text)
    assert float(re.search(r"connections_refused_total\{.*\} (.*)", text)[1]) == 1
    held[0][1].write(LAST)
    assert (await held[0][0].read()).startswith(b"HTTP/1.1 200")  # and the server has closed it
    held[0][1].close()
    assert (await exchange(served, head + body + LAST)).startswith(b"HTTP/1.1 202")
    served.app.state.connections.check()
    held[1][1].close()


@pytest.mark.parametrize("settings", [Settings(max_connections=1)])
async def test_a_silent_connection_too_many_is_told_soon(served, monkeypatch):
    monkeypatch.setattr("splitfuse.server.http.connection.REFUSED_S", 0.05)
    await served.client.get("/version")
    assert error_of(await exchange(served))[0] == 503


async def half_closed(served, *requests, until=None):
    """Return the answer to a client that half-closes after these requests, like `nc -N`. `until`: a probe to await."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(served.url).port)
    writer.write(b"".join(requests))
    writer.write_eof()
    raw = b""
    if until is not None:
        raw = await asyncio.wait_for(reader.readuntil(until), 60)
        await served.engine.allow()
    raw += await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return raw


def request_of(path, version=b"1.1", **fields):
    body = json.dumps({"prompt": "hello", "max_tokens": 3, **fields}).encode()
    line = b"POST %b HTTP/%b\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    return line % (path.encode(), version, len(body)) + body


async def test_a_half_closed_client_gets_its_whole_answer(served, monkeypatch):
    # After it a client of HTTP/1.0 counts as gone.
    monkeypatch.setattr("splitfuse.server.http.connection.PROBE_S", 20)
    for version in (b"1.0", b"1.1"):
        assert b'"status":"queued"' in await half_closed(served, request_of("/generate", version))
        stream = await half_closed(served, request_of("/v1/completions", version, stream=True))
        assert b"data: [DONE]\n\n" in stream
    version = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    assert (await half_closed(served, version, version, version)).count(b"200 OK") == 3
    assert await half_closed(served, version[:20]) == b""


async def test_a_half_closed_client_can_wait_long_for_its_answer(served):
    """Meanwhile the server sends bytes that clients ignore, before the answer begins and between events."""
    served.engine.hold()
    raw = await half_closed(served, request_of("/v1/completions"), until=b"HTTP/1.1 100 Continue\r\n\r\n")
    answer = raw[raw.index(b"HTTP/1.1 200") :].partition(b"\r\n\r\n")[2]
    assert json.loads(answer)["usage"]["completion_tokens"] == 3
    served.engine.hold()
    raw = await half_closed(served, request_of("/generate", stream=True), until=b"\r\n3\r\n:\n\n\r\n")
    assert raw.count(b"event: token") == 3
    assert raw.endswith(b"\n\n\r\n0\r\n\r\n")


async def test_between_lines_of_json_a_space_is_written_meanwhile(served):
    served.engine.hold()
    body = json.dumps({"prompt": "hello", "raw": True, "options": {"num_predict": 3}}).encode()
    head = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    raw = await half_closed(served, head, body, until=b"\r\n1\r\n \r\n")
    answer = raw[raw.index(b"HTTP/1.1 200") :].partition(b"\r\n\r\n")[2]  # perhaps after a 100 Continue
    chunks = answer.split(b"\r\n")[1::2]
    assert [json.loads(line)["done"] for line in b"".join(chunks).splitlines()][-1]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=str)
async def test_a_client_that_is_gone_is_not_taken_for_a_half_closed_one(served, version, fields):
    served.engine.hold()
    _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(served.url).port)
    writer.write(request_of("/v1/completions", version, max_tokens=400, **fields))
    await asyncio.wait_for(served.engine.submitted.wait(), 60)
    writer.close()
    await served.engine.allow(3)
    await asyncio.wait_for(served.engine.abort_seen.wait(), 60)


POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'e\r\n{"prompt":"x"}\r\n'


@pytest.mark.parametrize("is_split", [False, True])
async def test_a_request_whose_end_is_unclear_ends_the_connection(served, is_split):
    for request_bytes, fault in [
        (POST + b"Content-Length: 4\r\n" + CHUNKED + BODY + b"0\r\n\r\n", "the request's end is unclear"),
        (POST + b"content-length:4\r\n" + CHUNKED.replace(b" c", b"\tC") + BODY + b"0\r\n\r\n", "end is unclear"),
        (POST.replace(b"1.1", b"1.0") + CHUNKED + BODY + b"0\r\n\r\n", "the request's end is unclear"),
        (b"GET /version HTTP/1.1\nHost: localhost\n\n", "LF alone"),
        (b"GET /version HTTP/1.1\r\nHost: localhost\nX-A: b\r\n\r\n", "LF alone"),
        (b"GET /version HTTP/1.1\r\nHost: localhost\r\n\n", "LF alone"),
        (b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n c\r\n\r\n", "in the next line"),
        (b"GET /version HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding:\r\n\tchunked\r\n\r\n", "in the next line"),
        (POST + CHUNKED + BODY + b"0 \r\n\r\n", "a chunk's size"),
        (POST + CHUNKED + BODY.replace(b"e\r", b"e\t\r", 1) + b"0\r\n\r\n", "a chunk's size"),
        (POST + CHUNKED + BODY.replace(b"e\r", b"e;x\r0\r", 1) + b"0\r\n\r\n", "a chunk's size"),
        (POST + CHUNKED + BODY + b"0\r\nX-A: b\n\r\n", "LF alone"),
        (POST + CHUNKED + BODY + b"0\r\nX-A: b\r\n c\r\n\r\n", "in the next line"),
    ]:
        parts = [bytes([byte]) for byte in request_bytes] if is_split else [request_bytes]
        raw = await exchange(served, *parts, LAST)
        status, error = error_of(raw)
        assert (status, raw.count(b"HTTP/1.1 ")) == (400, 1), request_bytes
        assert b"Connection: close" in raw
        assert fault in error["message"]


async def test_clear_chunks_are_read(served):
    ends = (b"0\r\n\r\n", b"000\r\n\r\n", b"0;a=b\r\n\r\n", b"0\r\nX-Trailer: b\r\n\r\n")
    for end in ends:
        raw = await exchange(served, POST + CHUNKED + BODY + end, LAST)
        assert raw.count(b"HTTP/1.1 200") == 2, (end, raw)
