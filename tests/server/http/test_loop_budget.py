"""A crowd never holds the loop: each turn handles few bytes of bodies and begins few requests, but every probe."""

import asyncio
import socket
import struct

import httpx
import pytest

from splitfuse.server.http.connection import HAS_LEFT
from splitfuse.server.http.loop_budget import BYTES_PER_TURN, LEAST_BYTES, REQUESTS_PER_TURN, LoopBudget, RequestBudget
from splitfuse.server.http.response_middleware import ResponseMiddleware


async def handled_per_turn(sizes):
    """Return the numbers of the bodies that one turn of the loop handles, for each turn."""
    turns, bodies, handled = [], LoopBudget(BYTES_PER_TURN, least=LEAST_BYTES), []

    async def handle(number, size):
        await bodies.wait(size)
        handled.append(number)

    async with asyncio.TaskGroup() as group:
        for number, size in enumerate(sizes):
            group.create_task(handle(number, size))
        while sum(map(len, turns)) < len(sizes):
            await asyncio.sleep(0)
            turns.append(handled.copy())
            handled.clear()
    return [turn for turn in turns if turn]


async def test_a_crowd_of_large_bodies_leaves_the_loop_between_them():
    assert await handled_per_turn([BYTES_PER_TURN] * 80) == [[number] for number in range(80)]


async def test_bodies_of_any_size_keep_their_order_and_the_budget():
    sizes = [*([100] * 70), 50 * 2**20, 30 * 2**10, 30 * 2**10, 30 * 2**10, 10]
    turns = await handled_per_turn(sizes)
    assert [number for turn in turns for number in turn] == list(range(len(sizes)))
    assert [len(turn) for turn in turns] == [32, 32, 6, 1, 2, 2]


async def test_a_wait_that_was_cancelled_takes_no_turn():
    bodies = LoopBudget(BYTES_PER_TURN, least=LEAST_BYTES)
    await bodies.wait(BYTES_PER_TURN)
    waits = [asyncio.create_task(bodies.wait(BYTES_PER_TURN)) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await waits[1]
    assert not bodies._waiting


def scope_of(path):
    return {"type": "http", "path": path}


async def begin_crowd(group, count):
    """Let a crowd of requests ask to begin. Return their scopes, the list of paths that have begun, and the app."""
    begun = []

    async def app(scope, receive, send):
        begun.append(scope["path"])

    turns = RequestBudget(app)
    scopes = [scope_of(f"/{number}") for number in range(count)]
    for scope in scopes:
        group.create_task(turns(scope, None, None))
    return scopes, begun, turns


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_a_probe_begins_before_a_crowd_of_earlier_requests(path):
    async with asyncio.TaskGroup() as group:
        scopes, begun, turns = await begin_crowd(group, 500)
        await group.create_task(turns(scope_of(path), None, None))
        assert begun == [*(scope["path"] for scope in scopes[:REQUESTS_PER_TURN]), path]
    assert begun[REQUESTS_PER_TURN + 1 :] == [scope["path"] for scope in scopes[REQUESTS_PER_TURN:]]


async def test_requests_whose_clients_leave_before_their_turn_never_begin():
    async with asyncio.TaskGroup() as group:
        scopes, begun, _ = await begin_crowd(group, 500)
        await asyncio.sleep(0)
        for scope in scopes[10:]:
            scope[HAS_LEFT] = True
    assert begun == [scope["path"] for scope in scopes[:10]]


async def test_a_lost_connection_ends_a_request_that_waits_and_a_probe_waits_for_none(served, monkeypatch):
    waits, held, lost, begun = asyncio.Event(), asyncio.Event(), asyncio.Event(), []
    respond = ResponseMiddleware.__call__

    async def wait(turns, cost):
        waits.set()
        await held.wait()

    async def begin(middleware, scope, receive, send):
        begun.append(scope["path"])
        await respond(middleware, scope, receive, send)

    monkeypatch.setattr(LoopBudget, "wait", wait)
    monkeypatch.setattr(ResponseMiddleware, "__call__", begin)
    monkeypatch.setattr(served.app.state.connections, "remove", lambda address: lost.set())
    _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(served.url).port)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.write(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
    await waits.wait()
    assert (await served.client.get("/ready")).status_code == 200
    writer.transport.abort()  # resets the connection
    await lost.wait()
    held.set()
    assert (await served.client.get("/stats")).status_code == 200
    assert begun == ["/ready", "/stats"]
