"""Fault of a real process, the promise for it, and the check of the promise."""

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
    """Outcome of a fault."""

    holds: bool
    what: str


@dataclass(frozen=True)
class Fault:
    """Fault that `see` causes, in a few seconds to a minute. An exception of `see` counts as a broken promise."""

    name: str
    what: str
    promise: str
    see: Callable[[], Seen]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the value of a call, and the seconds that it took."""
    start = time.monotonic()
    value = call()
    return value, time.monotonic() - start


def complete(client: httpx.Client, prompt: Any = "Once", *, max_tokens: int = 3, **fields: Any) -> httpx.Response:
    """Send POST /v1/completions."""
    return client.post("/v1/completions", json={"prompt": prompt, "max_tokens": max_tokens, **fields})


@contextmanager
def crowd(served: Served, data: bytes, count: int) -> Iterator[None]:
    """Open connections that have sent these bytes and read nothing."""
    connections = [served.connect() for _ in range(count)]
    try:
        for connection in connections:
            connection.sendall(data)
        yield
    finally:
        for connection in connections:
            connection.close()


def post_bytes(path: str, body: Any) -> bytes:
    """Return the bytes of a whole request."""
    text = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


def first_line(served: Served, data: bytes, *, half_close: bool = False) -> str:
    """Return the first line of the answer to these bytes; empty if the connection is closed without an answer."""
    with served.connect(timeout=20) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        try:
            return connection.recv(4096).partition(b"\r\n")[0].decode("latin-1")
        except ConnectionResetError:
            return ""
