"""Overload: crowds of slow grammars and of clients that leave. Observed by probes in processes of their own."""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
from served import Served

NUM_GRAMMARS = 80
NUM_ROUNDS, STREAMS_PER_ROUND, ROUND_S = 3, 7000, 100.0
NUM_CLIENTS, STORM_S = 500, 30.0
_STREAM = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}


@dataclass(frozen=True)
class Seen:
    """Outcome of a fault."""

    holds: bool
    what: str


@dataclass(frozen=True)
class Fault:
    """Fault that `see` causes, in a minute or two. An exception of `see` counts as a broken promise."""

    name: str
    what: str
    promise: str
    see: Callable[[], Seen]


def post_bytes(path: str, body: Any) -> bytes:
    """Return the bytes of a whole request."""
    text = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


@contextmanager
def probe(served: Served, kind: str, seen: list[Any]) -> Iterator[subprocess.Popen[str]]:
    """Probe the server meanwhile (probe.py); afterwards `seen` holds the result. A line to stdin ends the quiet."""
    command = [sys.executable, "-P", "-m", "faults.probe", kind, served.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            seen += json.loads(process.communicate(timeout=120)[0])


def _start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _patterns(number: int) -> dict[str, Any]:
    names = (f"f{i}" for i in range(700))
    fields = ({name: {"type": "string", "pattern": f"a{name}x{number}.*"}} for name in names)
    return {"json": {"anyOf": [{"type": "object", "properties": f, "required": list(f)} for f in fields]}}


def _enum(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    return {"json": {"enum": ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=10)) for _ in range(5000)]}}


def _rules(number: int) -> dict[str, Any]:
    rules = [f"r{i}: /[a-z]{{{i % 50 + 1}}}{number}x/ r{(i + 1) % 1000}" for i in range(1, 1000, 2)]
    rules += [f"r{i}: /[a-z]+{i}{number}/" for i in range(0, 1000, 2)]
    return {"grammar": "\n".join(["start: " + " | ".join(f"r{i}" for i in range(1000)), *rules])}


async def _send_all(url: str, bodies: list[bytes]) -> list[int]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, limits=limits) as client:
        headers = {"Content-Type": "application/json"}
        answers = await asyncio.gather(
            *(client.post("/v1/completions", content=body, headers=headers) for body in bodies)
        )
    return [answer.status_code for answer in answers]


def slow_grammars(kind: str) -> Seen:
    grammar = {"patterns": _patterns, "enums": _enum, "rules": _rules}[kind]
    bodies = [
        json.dumps({"prompt": "a", "max_tokens": 30, "structured_outputs": grammar(i)}).encode()
        for i in range(NUM_GRAMMARS)
    ]
    seen: list[Any] = []
    with Served("--num-threads", "1") as served, served.client() as client:
        easy = {"prompt": "a", "max_tokens": 3, "structured_outputs": {"regex": "a"}}
        client.post("/v1/completions", json=easy).raise_for_status()
        with probe(served, "gaps", seen) as process:
            while not served.stats()["num_running"]:
                pass
            for _ in range(20):
                client.get("/health")
            _start(process)
            statuses = asyncio.run(_send_all(served.url, bodies))
    quiet, gaps = seen[0], max(seen[1])
    served_ones = sum(status == 200 for status in statuses)
    return Seen(
        gaps < 0.25 and not {*statuses} - {200, 400, 429},
        f"longest gap {gaps:.2f} s (alone {quiet:.2f}), {served_ones} of {NUM_GRAMMARS} served",
    )


async def _leave(port: int, body: bytes, *, num_bytes: int) -> None:
    """Open a stream, read a little of it and leave."""
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(body)
            await asyncio.wait_for(reader.read(num_bytes), 5)
        except TimeoutError:
            pass
        finally:
            writer.transport.abort()


async def _storm(port: int, *, num_streams: int, num_clients: int, seconds: float) -> int:
    """Open and leave streams, `num_clients` at once. Return their number."""
    deadline = asyncio.get_running_loop().time() + seconds
    body, num_left = post_bytes("/generate", _STREAM), num_streams

    async def client() -> None:
        nonlocal num_left
        while num_left > 0 and asyncio.get_running_loop().time() < deadline:
            num_left -= 1
            await _leave(port, body, num_bytes=4096)

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return num_streams - max(0, num_left)


def abort_memory() -> Seen:
    sizes: list[float] = []
    num_streams = 0
    with Served("--num-threads", "1") as served:
        sizes.append(served.usage().rss_mb)
        for _ in range(NUM_ROUNDS):
            storm = _storm(served.port, num_streams=STREAMS_PER_ROUND, num_clients=NUM_CLIENTS, seconds=ROUND_S)
            num_streams += asyncio.run(storm)
            served.until_idle()
            sizes.append(served.usage().rss_mb)
        stats = served.stats()
    told = " -> ".join(f"{size:.0f}" for size in sizes)
    kept = f"{stats['num_results']} results counted as {stats['num_result_bytes'] / 2**20:.0f} MiB"
    holds = sizes[-1] <= 250 and sizes[-1] - sizes[-2] <= 5 and num_streams >= 20_000
    return Seen(holds, f"{told} MiB after {num_streams} streams, {kept}")


def abort_storm() -> Seen:
    seen: list[Any] = []
    with Served("--num-threads", "1") as served, probe(served, "/ready", seen) as process:
        _start(process)
        storm = _storm(served.port, num_streams=10**6, num_clients=NUM_CLIENTS, seconds=STORM_S)
        num_streams = asyncio.run(storm)
    values = sorted(seen[1])
    half, most = values[len(values) // 2], values[int(len(values) * 0.99)]
    return Seen(most <= 0.5, f"{len(values)} x 200, p50 {half:.2f} s, p99 {most:.2f} s, {num_streams} streams")


FAULTS = (
    *(
        Fault("R21", f"80 slow grammars at once: {kind}", "a stream's longest gap under 0.25 s",
              partial(slow_grammars, kind))
        for kind in ("patterns", "enums", "rules")
    ),
    Fault("R22", "3 rounds of 7,000 streams that are left", "RssAnon of 250 MiB at most, and flat", abort_memory),
    Fault("R23", "500 clients that open and leave streams", "/ready within 0.5 s at the 99th percentile", abort_storm),
)  # fmt: skip
