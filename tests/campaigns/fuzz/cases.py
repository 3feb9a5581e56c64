"""Case: a hostile request determined by its number, from generators of the tests, or a good body changed."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tables import table
from test_bad_input import BODIES, bodies  # type: ignore[import-not-found]
from test_field_combinations import ROUTES, random_body  # type: ignore[import-not-found]

# A deadline ends valid requests, so an answer that takes longer is a fault.
DEADLINE = {"timeout_ms": 2000}
GOOD: dict[str, Any] = table(__file__, "good")
TEXTS = ["", "\0", "\ufeff", "\u202e", "<|end|>", "é" * 300, "a" * 5000, "/../", "%00", "{{ 7 * 7 }}", "\U0001f600"]
NUMBERS: list[Any] = [0, -1, 1.5, 2**31, 2**63, -(2**63) - 1, 1e308, 5e-324, -0.0, float("nan"), float("inf")]
OTHERS: list[Any] = [None, True, False, [], {}, [[]], {"": None}, [None] * 50, {"a": {"b": {"c": [0]}}}]
HEADS = [
    "GET /{path} HTTP/{version}", "{method} /generate HTTP/1.1", "GET http://{host}/{path} HTTP/1.1", "GET *",
    "GET /{path}", "PRI * HTTP/2.0", "GET /{path} HTTP/1.1 HTTP/1.1", " GET / HTTP/1.1", "get / http/1.1",
]  # fmt: skip
FIELDS = [
    "Host: {host}", "Content-Length: {number}", "Content-Length: 1\r\nContent-Length: 2",
    "Transfer-Encoding: chunked\r\nContent-Length: 5", "Transfer-Encoding: gzip, chunked", "Expect: 100-continue",
    "Upgrade: h2c\r\nConnection: Upgrade", "X: {text}", "X-Request-Id: {text}", "Authorization: Bearer {text}",
    "Content-Encoding: gzip", "Range: bytes=0-1", "{text}: 1", "X:\t\x0b1", "Last-Event-ID: {number}",
    "Connection: close",
]  # fmt: skip
METHODS = ["GET", "HEAD", "PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT", "DELETE", "A" * 300, "G\x01T"]
PATHS = [
    "",
    "health",
    "result/x",
    "result/%00",
    "../etc/passwd",
    "v1/models/%2e%2e",
    "x" * 9000,
    "?a=%zz",
    "result/x/stream",
]

# A server that sees the end of a framing case elsewhere than it should answers this too.
SECOND = "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Case:
    """Case of bytes to send on a new connection. `asks_head`: the answer has no body, whatever its length says."""

    number: int
    kind: str
    data: bytes
    asks_head: bool = False


def case(number: int) -> Case:
    """Return the case of this number."""
    rng = random.Random(number)
    kind = rng.choice(list(_KINDS))
    data = _KINDS[kind](rng)
    return Case(number, kind, data, asks_head=data.startswith(b"HEAD "))


def _request(route: str, body: bytes) -> bytes:
    head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _bad_body(rng: random.Random) -> bytes:
    route = rng.choice(list(GOOD))
    choices = list(bodies(route)) if route in ROUTES else list(BODIES)
    return _request(route, rng.choice(choices))


def _combination(rng: random.Random) -> bytes:
    route = rng.choice(list(ROUTES))
    return _request(route, json.dumps({**random_body(rng, ROUTES[route]), **DEADLINE}).encode())


def _mutation(rng: random.Random) -> bytes:
    route = rng.choice(list(GOOD))
    body = json.loads(json.dumps(GOOD[route]))
    for _ in range(rng.choice([1, 1, 2])):
        body = _mutated(rng, body)
    deadline = DEADLINE if route in ROUTES else {}
    return _request(route, json.dumps({**body, **deadline} if isinstance(body, dict) else body).encode())


def _mutated(rng: random.Random, value: Any) -> Any:
    """Return the value with one part replaced, dropped, doubled or moved."""
    if not value or not isinstance(value, dict | list) or rng.random() < 0.2:
        return rng.choice([rng.choice(TEXTS), rng.choice(NUMBERS), rng.choice(OTHERS), [value, value], {"a": value}])
    items = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    key = rng.choice(list(items))
    if rng.random() < 0.2:
        del items[key]
    elif isinstance(value, dict) and rng.random() < 0.2:
        items[rng.choice([*TEXTS, str(key) + "s"])] = items.pop(key)
    else:
        items[key] = _mutated(rng, items[key])
    return items if isinstance(value, dict) else list(items.values())


def _flipped(rng: random.Random) -> bytes:
    """Return a good body with a byte or two changed, inserted or deleted behind the deadline."""
    route = rng.choice(list(GOOD))
    first = json.dumps(DEADLINE)[:-1] + ", " if route in ROUTES else "{"
    body = bytearray(json.dumps(GOOD[route]).encode()[1:])
    for _ in range(rng.choice([1, 1, 2])):
        at, new = (
            rng.randrange(len(body)),
            rng.choice([rng.randbytes(1), rng.choice(b'0159aex "\\{}[],:-.').to_bytes(1, "big")]),
        )
        body[at : at + rng.choice([0, 1, 1, 1])] = rng.choice([new, new, b""])
    return _request(route, first.encode() + bytes(body))


def _framing(rng: random.Random) -> bytes:
    """Return a request whose end another program could see elsewhere, and a second request behind it."""
    good = b'{"prompt":"x"}'
    head = rng.choice(["POST /tokenize HTTP/1.1", "POST /generate HTTP/1.1", "GET /version HTTP/1.1"])
    lines = [head, "Host: localhost"]
    how = rng.randrange(7)
    end, chunk = rng.choice(["0\r\n\r\n", "00\r\n\r\n"]), f"{len(good):x}\r\n{good.decode()}\r\n"
    chunked = rng.choice(["Transfer-Encoding: chunked", "transfer-encoding:\tChunked"])
    if how == 0:
        both = [f"Content-Length: {rng.choice([0, 1, len(good), 100])}", chunked]
        lines += rng.sample(both, 2)
    elif how == 1:
        lines[0] = lines[0].replace("1.1", "1.0")
        lines.append(chunked)
    elif how == 2:
        lines += [chunked, rng.choice(["X-A: b\r\n c", "X-A:\r\n\tchunked"])]
    elif how == 3:
        lines += [f"Content-Length: {len(good)}", f"Content-Length: {rng.choice([0, len(good) + 1])}"]
        chunk, end = good.decode(), ""
    elif how == 4:
        lines.append(chunked)
        chunk = rng.choice([f"{len(good):x} \r\n", f"{len(good):x};x\r\x00", f"0x{len(good):x}\r\n", "+e\r\n", "g\r\n"])
        chunk += good.decode() + "\r\n"
    elif how == 5:
        lines += [chunked + rng.choice([", identity", ", gzip", ";q=1", "x"])]
    else:
        lines.append(rng.choice(["X-A: b\n", "X-A: b\nX-B: c", "X-A\x00: b", "X A: b", ": b", "Content-Length: +14"]))
        chunk, end = "", ""
    return ("\r\n".join([*lines, "", ""]) + chunk + end + SECOND).encode()


def _raw_head(rng: random.Random) -> bytes:
    words = {
        "path": rng.choice(PATHS), "method": rng.choice(METHODS), "host": rng.choice(["127.0.0.1", "x:y", "", "[::"]),
        "version": rng.choice(["1.1", "1.0", "0.9", "3.1", "1.1x"]), "text": rng.choice(TEXTS),
        "number": rng.choice(["-1", "5", "1e3", "9" * 30, "0x5", "+1", ""]),
    }  # fmt: skip
    host = ["Host: 127.0.0.1"] if rng.random() < 0.7 else []
    lines = [rng.choice(HEADS), *host, *rng.sample(FIELDS, rng.randint(0, 3))]
    return "\r\n".join([*(line.format(**words) for line in lines), "", ""]).encode("utf-8", "replace")


_KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "bad body": _bad_body,
    "fields": _combination,
    "mutation": _mutation,
    "bytes": _flipped,
    "head": _raw_head,
    "framing": _framing,
}
