"""Fault: something that goes wrong in a real process, what is promised then, and how to see whether it holds."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from served import Served


@dataclass(frozen=True)
class Seen:
    """What came of it."""

    holds: bool
    what: str


@dataclass(frozen=True)
class Fault:
    """`see` brings it about, in a few seconds to a minute. Whatever it raises counts as not held."""

    name: str
    what: str
    promise: str
    see: Callable[[], Seen]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The value, and the seconds that it took."""
    start = time.monotonic()
    value = call()
    return value, time.monotonic() - start


def complete(client: httpx.Client, prompt: Any = "Once", *, max_tokens: int = 3, **fields: Any) -> httpx.Response:
    """POST /v1/completions."""
    return client.post("/v1/completions", json={"prompt": prompt, "max_tokens": max_tokens, **fields})


@contextmanager
def crowd(served: Served, data: bytes, count: int) -> Iterator[None]:
    """So many connections that have sent this and read nothing."""
    connections = [served.connect() for _ in range(count)]
    try:
        for connection in connections:
            connection.sendall(data)
        yield
    finally:
        for connection in connections:
            connection.close()


def post_bytes(path: str, body: Any) -> bytes:
    """A whole request."""
    text = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


def first_line(served: Served, data: bytes, *, half_close: bool = False) -> str:
    """The first line of the answer to these bytes; empty if the connection is closed without one."""
    with served.connect(timeout=20) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        try:
            return connection.recv(4096).partition(b"\r\n")[0].decode("latin-1")
        except ConnectionResetError:
            return ""
