"""Crowds, killed children and groups of little memory. `scale` makes the crowds smaller, for a busy machine."""

import asyncio
import json
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults.overload_faults import Fault, Seen, post_bytes
from served import Served

READY_S, MOST_MB = 1.0, 200.0
_ONE_THREAD = ("--num-threads", "1")
_CROWD = (*_ONE_THREAD, "--max-queue-size", "20000", "--max-results", "20000")
_BODY = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
_HELLO = [{"role": "user", "content": "Hello"}]

scale = 1.0


def scaled(number: int) -> int:
    """Return the size of a crowd."""
    return max(2, round(number * scale))


async def answered(port: int, bodies: Iterator[bytes], *, num_clients: int) -> list[tuple[int, bytes]]:
    """Send requests one after the other over each of the connections, which stay open. Return statuses and bodies."""
    answers: list[tuple[int, bytes]] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body in bodies:
            writer.write(body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            answers.append((int(head[9:12]), await reader.readexactly(int(length[1]) if length else 0)))
        writer.close()

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return answers


async def streamed(port: int, body: bytes) -> str:
    """Return the text of a whole stream of /v1/completions."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write(body.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    lines = (await reader.read()).splitlines()
    writer.close()
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    return "".join(choice["text"] for event in events for choice in event["choices"]) + str(b"data: [DONE]" in lines)


async def beside(port: int, *work: Any) -> tuple[Any, float]:
    """Return what the work returns, and the longest time that /ready took meanwhile."""
    longest, running = 0.0, asyncio.ensure_future(asyncio.gather(*work))
    get = f"GET /ready HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    while not running.done():
        start = time.monotonic()
        await answered(port, iter([get]), num_clients=1)
        longest = max(longest, time.monotonic() - start)
        await asyncio.sleep(0.1)
    return await running, longest


def text_of(served: Served, **fields: Any) -> str:
    with served.client(timeout=600) as client:
        text: str = client.post("/v1/completions", json={**_BODY, **fields}).json()["choices"][0]["text"]
        return text


def streams() -> Seen:
    number = scaled(2000)
    with Served(*_CROWD) as served:
        expected, before = text_of(served) + "True", served.usage().rss_mb
        body = post_bytes("/v1/completions", {**_BODY, "stream": True})
        texts, longest = asyncio.run(beside(served.port, *(streamed(served.port, body) for _ in range(number))))
        grown = served.usage().rss_mb - before
        served.until_idle()
    wrong = sum(text != expected for text in texts)
    told = f"{number} streams, {wrong} wrong, /ready {longest:.2f} s, {grown:.0f} MB more"
    return Seen(not wrong and longest < READY_S and grown < MOST_MB, told)


def jobs() -> Seen:
    number = scaled(10_000)
    with Served(*_CROWD) as served:
        with served.client() as client:
            first = client.post("/generate", json=_BODY).json()["seq_id"]
            expected = client.get(f"/result/{first}?wait=60").json()["token_ids"]
        post = iter([post_bytes("/generate", _BODY)] * number)
        taken = asyncio.run(answered(served.port, post, num_clients=32))
        ids = [json.loads(body)["seq_id"] for status, body in taken if status == 202]
        served.until_idle(seconds=3600)
        head = "GET /result/{} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n"
        gets = iter([head.format(seq_id, served.port).encode() for seq_id in ids])
        results = asyncio.run(answered(served.port, gets, num_clients=32))
    right = sum(status == 200 and json.loads(body)["token_ids"] == expected for status, body in results)
    return Seen(right == len(set(ids)) == number, f"{number} jobs, {len(set(ids))} taken, {right} right")


def requests() -> Seen:
    number, sizes = scaled(200_000), list[float]()
    with Served(*_ONE_THREAD) as served:
        body = post_bytes("/v1/completions", {**_BODY, "max_tokens": 1})
        statuses = Counter[int]()
        for _ in range(4):
            answers = asyncio.run(answered(served.port, iter([body] * (number // 4)), num_clients=32))
            statuses.update(status for status, _ in answers)
            sizes.append(served.usage().rss_mb)
    told = " -> ".join(f"{size:.0f}" for size in sizes)
    return Seen({*statuses} == {200} and sizes[-1] - sizes[0] < 30, f"{dict(statuses)}; {told} MB")


def slow_readers() -> Seen:
    """Some read nothing of long streams, until another stream has been read to its end."""
    number = scaled(200)
    long = {**_BODY, "max_tokens": 1500, "stream": True}
    with Served(*_CROWD) as served:
        expected, before = text_of(served, max_tokens=400), served.usage().rss_mb
        held = list[socket.socket]()
        for _ in range(number):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.connect(("127.0.0.1", served.port))
            sock.sendall(post_bytes("/v1/completions", long).replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            held.append(sock)
        witness = post_bytes("/v1/completions", {**_BODY, "max_tokens": 400, "stream": True})
        (text,), longest = asyncio.run(beside(served.port, streamed(served.port, witness)))
        served.until_idle(seconds=3600)
        grown, whole = served.usage().rss_mb - before, 0
        for sock in held:
            sock.settimeout(60)
            content = bytearray()
            while part := sock.recv(2**16):
                content += part
            whole += b"data: [DONE]" in content
            sock.close()
    told = f"{whole} of {number} whole, the other stream {text == expected + 'True'}, "
    told += f"/ready {longest:.2f} s, {grown:.0f} MB more"
    holds = whole == number and text == expected + "True" and longest < READY_S and grown < MOST_MB
    return Seen(holds, told)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = list[int]()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(number) for number in path.read_text().split()]
    return found


def killed_children() -> Seen:
    """A kernel without memory kills a process of the server: grammars and templates go on in another."""
    statuses, num_killed = Counter[int](), 0
    with Served(*_ONE_THREAD) as served:
        expected = text_of(served)
        for round_number in range(scaled(20)):
            grammar = {"regex": f"[a-z]{{{round_number + 1}}}"}
            asked: list[tuple[str, dict[str, Any]]] = [
                ("/v1/completions", {**_BODY, "structured_outputs": grammar, "ignore_eos": False}),
                ("/v1/chat/completions", {"messages": _HELLO, "max_tokens": 3}),
            ] * 4
            bodies = iter([post_bytes(path, body) for path, body in asked])

            async def kill(pid: int = served.process.pid) -> int:
                await asyncio.sleep(0.01)
                killed = [child for child in children(pid) if b"last_resort" not in _command(child)]
                for child in killed:
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                return len(killed)

            async def both(bodies: Iterator[bytes] = bodies, kill: Callable[[], Any] = kill) -> Any:
                return await asyncio.gather(answered(served.port, bodies, num_clients=4), kill())

            answers, num = asyncio.run(both())
            num_killed += num
            statuses.update(status for status, _ in answers)
        goes_on = text_of(served) == expected
    told = f"{num_killed} killed, {dict(statuses)}, goes on: {goes_on}"
    return Seen(goes_on and num_killed > 0 and not {*statuses} - {200, 503}, told)


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def little_memory() -> Seen:
    """The group has a limit of its own, which whoever runs this has set: SPLITFUSE_MEMORY_GROUP is its folder."""
    group = os.environ.get("SPLITFUSE_MEMORY_GROUP")
    if group is None:
        return Seen(True, "SPLITFUSE_MEMORY_GROUP names no group: not tried")

    def join() -> None:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))

    with Served(*_ONE_THREAD, prepare=join) as served:
        num_blocks, most = served.stats()["num_blocks"], served.stats()["max_model_len"]
        with served.client(timeout=600) as client:
            statuses = Counter(
                client.post("/v1/completions", json={**_BODY, "prompt": [5 + number] * (most - 30)}).status_code
                for number in range(scaled(40))
            )
        code = served.wait(0)
    return Seen({*statuses} == {200} and code is None, f"{num_blocks} blocks, {dict(statuses)}, exit {code}")


_FLAT = f"all right, /ready within {READY_S:g} s, at most {MOST_MB:.0f} MB more"
FAULTS = (
    Fault("C1", "2,000 streams at once", _FLAT, streams),
    Fault("C2", "10,000 jobs", "all taken, all right", jobs),
    Fault("C3", "200,000 requests", "all answered, and memory flat", requests),
    Fault("C4", "200 readers that do not read", _FLAT, slow_readers),
    Fault("C5", "processes of the server are killed beside requests", "200 or 503, and it goes on", killed_children),
    Fault("C6", "40 long prompts in a group of little memory", "all answered, nothing killed", little_memory),
)
