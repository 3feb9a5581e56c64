"""Attacks of 2026-11-24 (A2 to A11) on real processes: outgoing calls, the results file, its key, signals."""

import contextlib
import json
import os
import resource
import secrets
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from faults.fault import Fault, Seen, complete, timed
from postgres_server import PostgresServer
from served import DEMO, SERVE, Served

BODY = {"prompt": "Once", "max_tokens": 5, "seed": 1}
LONG = {"prompt": "Once upon a secret time", "max_tokens": 800, "seed": 1, "ignore_eos": True}
WORDS = "an unmistakable sentence that no file may hold"
_CHUNK = bytes(10**5)


@contextmanager
def target(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the URL of a target that reads the beginning of a message and then answers."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(65536)
                answer(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, block_on_close, request_queue_size = True, False, 64

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def dribble(connection: socket.socket) -> None:
    """Send a header line each second, for a minute at most."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in range(60):
        connection.sendall(b"X-%d: a\r\n" % number)
        time.sleep(1)


def flood(connection: socket.socket) -> None:
    """Send a body of 3 GB."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000000\r\n\r\n")
    for _ in range(30_000):
        connection.sendall(_CHUNK)


def hang(connection: socket.socket) -> None:
    """Answer nothing, for a minute at most."""
    connection.settimeout(60)
    connection.recv(1)


ATTACKS = {"dribbles": dribble, "floods": flood, "hangs": hang}


def bad_webhook(how: str) -> Seen:
    received: list[float] = []

    def take(connection: socket.socket) -> None:
        received.append(time.monotonic())
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with tempfile.TemporaryDirectory() as folder, target(ATTACKS[how]) as bad, target(take) as healthy:
        secret = Path(folder, "secret")
        secret.touch(0o600)
        secret.write_text("whsec_" + "QUFB" * 10)
        targets = ("--webhook-targets", f"bad={bad}", "--webhook-targets", f"ops={healthy}")
        results = ("--results", f"{folder}/results.db", "--webhook-secret-file", str(secret))
        with Served(*results, *targets) as served, served.client() as client:
            before = served.usage().rss_mb
            for name in ["bad"] * 20 + ["ops"] * 3:
                answer = client.post("/generate", json={**BODY, "webhook": name})
                answer.raise_for_status()
            begin = time.monotonic()
            while len(received) < 3 and time.monotonic() < begin + 20:
                time.sleep(0.05)
            seconds = time.monotonic() - begin
            served.until_idle()
            grown = served.usage().rss_mb - before
    holds = len(received) == 3 and seconds < 5 and grown < 20
    return Seen(holds, f"{len(received)} of 3 at the other target within {seconds:.1f} s, {grown:+.0f} MiB")


def bad_receiver(how: str) -> Seen:
    """Let the receiver of spans misbehave while 60 requests are served, and end the server."""
    with target(ATTACKS[how]) as url, Served("--otlp-traces-endpoint", url) as served, served.client() as client:
        before = served.usage().rss_mb
        statuses, slowest = set(), 0.0
        deadline = time.monotonic() + 8  # spans are sent every 5 s
        while time.monotonic() < deadline:
            answer, seconds = timed(partial(complete, client))
            statuses.add(answer.status_code)
            slowest = max(slowest, seconds)
        grown = served.usage().rss_mb - before
        served.signal(signal.SIGTERM)
        code, seconds = timed(partial(served.wait, 40))
    holds = (statuses, code) == ({200}, 0) and slowest < 2 and seconds < 25 and grown < 40
    return Seen(holds, f"{statuses} within {slowest:.1f} s, {grown:+.0f} MiB, exit {code} after {seconds:.0f} s")


def full_results_disk() -> Seen:
    """Limit the size of files, like a full disk, while jobs run; then lift the limit."""
    with tempfile.TemporaryDirectory() as folder:
        store = ("--results", f"{folder}/results.db")
        with Served(*store) as served, served.client() as client:
            kept = client.post("/generate", json=BODY).json()["result_url"]
            text = client.get(kept + "?wait=60").json()["text"]
            running = client.post("/generate", json=LONG).json()["result_url"]
            _limit_files(served, 1)
            refused = [client.post("/generate", json=BODY).status_code for _ in range(3)]
            unkept = complete(client).status_code
            health, ready = served.status("/health"), served.status("/ready")
            _limit_files(served, resource.RLIM_INFINITY)
            deadline = time.monotonic() + 30
            while (status := client.post("/generate", json=BODY).status_code) != 202 and time.monotonic() < deadline:
                time.sleep(0.1)
            served.process.kill()
            served.process.wait()
        with Served(*store) as served, served.client(timeout=90) as client:
            again = client.get(kept).json().get("text"), client.get(running + "?wait=60").json().get("status")
    seen = (refused, unkept, health, status, again)
    holds = seen == ([503] * 3, 200, 200, 202, (text, "completed")) and ready == 503
    return Seen(holds, f"{refused}, unkept {unkept}, /health {health}, /ready {ready}; then {status}, {again[1]}")


def _limit_files(served: Served, size: int) -> None:
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def lost_file(how: str) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.db")
        with Served("--results", str(path)) as served, served.client() as client:
            client.post("/generate", json=BODY).raise_for_status()
            if how == "truncated":
                os.truncate(path, 0)
            else:
                path.rename(path.with_name("elsewhere")) if how == "moved" else path.unlink()
            time.sleep(1)  # the promise
            statuses = {client.post("/generate", json=BODY).status_code for _ in range(5)}
            ready = served.status("/ready")
    return Seen((statuses, ready) == ({503}, 503), f"{statuses}, /ready {ready}")


def wrong_key() -> Seen:
    """Send kill -9 amid an encrypted job, look for its text, start with no key and a wrong one, then the right one."""
    with tempfile.TemporaryDirectory() as folder:
        path, right, wrong = (Path(folder, name) for name in ("results.db", "right", "wrong"))
        for key in (right, wrong):
            key.touch(0o600)
            key.write_text(secrets.token_hex(32))
        store = ("--results", str(path))
        with Served(*store, "--results-key-file", str(right)) as served, served.client() as client:
            done = client.post("/generate", json={**BODY, "prompt": WORDS}).json()["result_url"]
            text = client.get(done + "?wait=60").json()["text"]
            running = client.post("/generate", json={**LONG, "prompt": WORDS}).json()["result_url"]
            served.process.kill()
            served.process.wait()
        frames = path.with_name("results.db-wal").read_bytes()
        before = _contents(path)
        is_clear = any(word in content for word in _texts(text) for content in before.values())
        refused = [_refusal(*store), _refusal(*store, "--results-key-file", str(wrong))]
        is_folded = _contents(path) != before  # SQLite folds the log into the file when the refused start closes it
        with Served(*store, "--results-key-file", str(right)) as served, served.client(timeout=90) as client:
            again = client.get(done).json().get("text") == text, client.get(running + "?wait=60").json().get("status")
    holds = bool(frames) and not is_clear and refused == [(2, 1)] * 2 and again == (True, "completed")
    told = f"{len(frames)} bytes of log, in the clear: {is_clear}, exit code and lines {refused}, folded: {is_folded}"
    return Seen(holds, f"{told}; with the key: {again}")


def _texts(text: str) -> list[bytes]:
    return [word.encode() for word in (WORDS, text[:15], text[-15:])]


def _contents(path: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes() for file in path.parent.glob(f"{path.name}*") if not file.name.endswith("-shm")
    }


def _refusal(*args: str) -> tuple[int, int]:
    """Return the exit code of a start that is refused, and the number of lines that it prints."""
    command = [*SERVE, "serve", "--port", "0", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **DEMO})
    return done.returncode, len(done.stderr.splitlines())


def odd_signal(number: int) -> Seen:
    with Served() as served, served.client() as client:
        url = client.post("/generate", json=LONG).json()["result_url"]
        served.signal(number)
        try:
            status = client.get(url + "?wait=60").json()["status"]
        except httpx.HTTPError as exc:
            status = type(exc).__name__
        if (code := served.wait(1)) is None:
            served.signal(signal.SIGTERM)
            code = served.wait(40)
    return Seen((status, code) == ("completed", 0), f"{status}, exit {code}")


def odd_ids() -> Seen:
    ids = ["a%00b", "%00", "..%2f..", "%27%20OR%201=1", "x" * 5000, "%F0%9F%98%80", "%ff", "job;--", "%0d%0aX:1"]
    results = tempfile.TemporaryDirectory()
    with results as folder, Served("--results", f"{folder}/r.db") as served, served.client() as client:
        told = [client.request(verb, f"/result/{name}").status_code for name in ids for verb in ("GET", "DELETE")]
        body: dict[str, Any] = {"input": "x", "previous_response_id": "resp_a\0"}
        told += [client.post("/v1/responses", json=body).status_code, served.status("/results?after=%00") or 0]
    return Seen({*told} <= {400, 404}, json.dumps({str(status): told.count(status) for status in {*told}}))


_AWAY_S = 120.0  # a pod whose liveness fails three times in half a minute is killed


def database_away() -> Seen:
    """Stop PostgreSQL below a server that keeps results there."""
    postgres = PostgresServer()
    postgres.start()
    try:
        with Served("--results", postgres.database()) as served, served.client() as client:
            before = client.post("/generate", json={"prompt": "Once", "max_tokens": 3}).json()["seq_id"]
            postgres.stop()
            end = time.monotonic() + _AWAY_S
            alive, ready = Counter[int | None](), Counter[int | None]()
            while time.monotonic() < end:
                alive[served.status("/health")] += 1
                ready[served.status("/ready")] += 1
                time.sleep(1)
            postgres.start()
            after = served.until_ready(seconds=60).status(f"/result/{before}")
        return Seen(
            {*alive} == {200} and 503 in ready and after == 200,
            f"/health {dict(alive)}, /ready {dict(ready)}, the result afterwards {after}",
        )
    finally:
        postgres.remove()


FAULTS = (
    *(
        Fault("A2", f"a webhook target {how}", "3 of 3 to another within 5 s, 20 MiB at most",
              partial(bad_webhook, how))
        for how in ATTACKS
    ),
    *(
        Fault("A2", f"a receiver of spans {how}", "requests within 2 s, 40 MiB at most, the end within 25 s",
              partial(bad_receiver, how))
        for how in ATTACKS
    ),
    *(
        Fault("A3", f"the results file is {how} below the server", "within 1 s no 202, and /ready 503",
              partial(lost_file, how))
        for how in ("deleted", "moved", "truncated")
    ),
    Fault("A3", "a full disk for the results", "503 for kept work, 200 for other; all is there afterwards",
          full_results_disk),
    Fault("A3", f"PostgreSQL is away for {_AWAY_S:g} s", "/health 200, /ready 503; the result is there after it",
          database_away),
    Fault("A4", "SIGKILL with --results-key-file, then no key, another, the right one",
          "no text in the files; one line; nothing lost", wrong_key),
    Fault("A8", "ids of no known form", "404 or 400", odd_ids),
    Fault("A11", "SIGQUIT", "it finishes what runs, exit 0", partial(odd_signal, signal.SIGQUIT)),
    Fault("A11", "SIGUSR1", "it finishes what runs, exit 0", partial(odd_signal, signal.SIGUSR1)),
)  # fmt: skip
