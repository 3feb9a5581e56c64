"""Campaigns for a few seconds each, and checks that their judges see a planted fault."""

import os
import random
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fuzz.cases import Case, case
from fuzz.verdict import verdict
from served import Usage
from soak.__main__ import Quiet, faults_of
from soak.trend import chance_of_slope

TESTS = Path(__file__).parents[1]
PATHS = [TESTS / folder for folder in ("campaigns", "support", "server", "server/behaviour")]


def run(*command: str) -> str:
    """Return the output of a campaign that finds nothing wrong."""
    paths = os.pathsep.join(filter(None, [*map(str, PATHS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-P", "-m", *command],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fuzz() -> None:
    assert "cases, nothing wrong" in run("fuzz", "--minutes", "0.02", "--seed", "1")


def test_soak() -> None:
    told = run("soak", "--minutes", "0.03", "--round-seconds", "2", "--seed", "1")
    assert "nothing wrong" in told
    assert " 0 canaries equal" not in told


def test_kills() -> None:
    told = run("kills", "--kills", "2", "--seed", "1")
    assert "nothing wrong" in told
    assert "'kills': 2" in told


def test_faults() -> None:
    assert "1 of 1 promises held" in run("faults", "R18")


def test_a_case_is_the_same_for_the_same_number() -> None:
    assert [case(number) for number in range(300)] == [case(number) for number in range(300)]
    assert {case(number).kind for number in range(300)} == {"bad body", "fields", "mutation", "bytes", "head"}


def answered(data: bytes | None) -> Any:
    """Return the verdict on a server that answers these bytes and closes, or does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with closing(connection):
                connection.recv(100_000)
                if data is None:
                    done.wait(10)
                else:
                    connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        served: Any = SimpleNamespace(
            connect=lambda timeout: socket.create_connection(listener.getsockname(), timeout),
            status=lambda *_, **__: None,
        )
        try:
            return verdict(served, Case(0, "head", b"GET / HTTP/1.1\r\n\r\n"), limit_s=0.3)
        finally:
            done.set()
            thread.join()


@pytest.mark.parametrize(
    ("data", "status", "fault"),
    [
        (b"HTTP/1.1 400 x\r\nContent-Length: 2\r\n\r\nok", 400, None),
        (b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n", 503, None),
        (b"HTTP/1.1 500 x\r\nContent-Length: 2\r\n\r\nno", 500, "500: "),
        (b'HTTP/1.1 200 x\r\nContent-Length: 22\r\n\r\n{"type":"server_error"}', 200, "a failure in a stream"),
        (b"HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\nno", None, "no whole answer: IncompleteRead"),
        (b"", None, "no whole answer: RemoteDisconnected"),
        (None, None, "no answer in 0.3 s"),
    ],
)
def test_the_verdict_on_an_answer(data: bytes | None, status: int | None, fault: str | None) -> None:
    judged = answered(data)
    assert judged.status == status
    assert judged.fault is None if fault is None else judged.fault.startswith(fault)


def moments(*, rise: float = 0.0, fds: int = 0) -> list[Quiet]:
    """Return an hour of quiet moments with noise, and with more MiB and descriptors at its end."""
    rng = random.Random(0)
    return [
        Quiet(15.0 * i, Usage(200 + rise * i / 240 + rng.uniform(-2, 2), 9 + fds * i // 240, 12), ("loop",))
        for i in range(240)
    ]


@pytest.mark.parametrize(
    ("series", "log", "fault"),
    [
        (moments(), "", None),
        (moments(rise=6.0), "", "memory rises by"),
        (moments(fds=8), "", "descriptors grew"),
        (moments(), "Traceback (most recent call last)", "a traceback"),
    ],
)
def test_the_verdict_on_a_soak(series: list[Quiet], log: str, fault: str | None) -> None:
    faults = faults_of(series, log, rng=random.Random(1))
    assert faults == [] if fault is None else faults[0].startswith(fault)


def test_the_chance_of_a_slope_is_even_without_a_trend() -> None:
    rng = random.Random(2)
    times = list(range(40))
    chances = [chance_of_slope(times, [rng.random() for _ in times], rng=rng, num_tries=200) for _ in range(100)]
    assert sum(chance < 0.1 for chance in chances) <= 25
    assert sum(chance > 0.5 for chance in chances) >= 30
