"""Campaigns for a few seconds each, and checks that their judges see a planted fault."""

import importlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fuzz.cases import Case, case
from fuzz.verdict import verdict
from mutations import loader
from mutations.attempt import LOADED, attempt, fault_of
from mutations.mutants import GGUF_SHARE, Mutant, mutant
from mutations.originals import Original, folder_models, gguf_models
from pairs import row
from pairs import switches as pairs
from served import Usage
from soak.__main__ import Quiet, faults_of
from soak.tenants import Competition
from soak.trend import chance_of_slope

from splitfuse.engine.extras.disk_cache import disk_cache

TESTS = Path(__file__).parents[1]
PATHS = [TESTS / folder for folder in ("campaigns", "support", "server", "server/behaviour")]


Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a campaign in this process and returns its output, if that finds nothing wrong."""

    def run(campaign: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [campaign, *arguments])
        code = importlib.import_module(f"{campaign}.__main__").main()
        told = capsys.readouterr().out
        assert code == 0, told
        return told

    return run


def run_process(*command: str) -> str:
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


def test_fuzz(run: Run) -> None:
    assert "cases, nothing wrong" in run("fuzz", "--minutes", "0.02", "--seed", "1")


@pytest.mark.thorough
def test_cache_files(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_NAMESPACE_WAIT_S", 60.0)  # as the campaign will; undone at the end
    assert "40 cases, nothing wrong" in run("cache_files", "--cases", "40")


@pytest.mark.thorough
def test_adapters(run: Run) -> None:
    assert "3 adapters in " in run("adapters", "--model", "demo", "--adapters", "3", "--seconds", "1", "--any-wait")


def test_every_pair_of_switches_occurs_unless_it_is_refused() -> None:
    for switches in (pairs.SERVER, pairs.REQUEST):
        rows = pairs.covering(switches, random.Random(1))
        assert len(rows) <= 45
        seen = set().union(*map(pairs.pairs_of, rows))
        assert {*map(frozenset, pairs._all_pairs(switches))} - {*map(frozenset, seen)} <= pairs.REFUSED
        assert not {*map(frozenset, seen)} & pairs.REFUSED
    assert len(pairs.SERVER) + len(pairs.REQUEST) > 40


@pytest.mark.thorough
def test_pairs(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"[1-9]\d* answers, \d+ pairs, 0 different", run("pairs", "--seconds", "1", "--rows", "1"))
    answer_of = row.answer_of
    planted = iter(range(10**9))  # each answer differs from all others in its last place
    monkeypatch.setattr(row, "answer_of", lambda result: [*answer_of(result), next(planted)])
    monkeypatch.setattr(sys, "argv", ["pairs", "--seconds", "1", "--rows", "1"])
    assert importlib.import_module("pairs.__main__").main() == 1
    assert not re.search(r" 0 different$", capsys.readouterr().out.strip())


def test_worlds() -> None:
    """A whole world and the beginning of a larger one, each in a process of its own."""
    *_, total = run_process("worlds", "--seconds", "2", "equal", "two tenants").splitlines()
    assert int(total.split(" states, ")[0]) > 429  # of the whole one
    assert total.endswith("; 0 broken")


@pytest.mark.thorough
def test_soak() -> None:
    told = run_process("soak", "--minutes", "0.03", "--round-seconds", "2", "--seed", "1")
    assert "nothing wrong" in told
    assert " 0 canaries equal" not in told
    assert "service as multiples of shares: long " in told


def test_kills(run: Run) -> None:
    told = run("kills", "--kills", "2", "--seed", "1")
    assert "nothing wrong" in told
    assert "'kills': 2" in told


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_turns(run: Run) -> None:
    told = run("turns", "--requests", "12", "--kills", "3", "--seed", "1", "--chat-tokens", "1600")
    assert "nothing wrong" in told
    assert "3 kills" in told
    assert "each once" in told
    assert "beside a greedy crowd" in told


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Original], list[Original]]:
    folder = tmp_path_factory.mktemp("originals")
    return folder_models(folder, ["gemma2"]), gguf_models(folder, ["llama-gqa-tied"])


def mutants(numbers: range, originals: tuple[list[Original], list[Original]]) -> list[Mutant]:
    return [mutant(number, *originals) for number in numbers]


def test_mutations(originals: tuple[list[Original], list[Original]], tmp_path: Path) -> None:
    cases = mutants(range(4), originals) + mutants(range(0, 16 * GGUF_SHARE, GGUF_SHARE), originals)
    outcomes: list[str] = []
    for changed in cases:
        path = changed.written_to(tmp_path / str(len(outcomes)))
        seen, fault = attempt(path, is_short=changed.is_short, num_bytes=len(changed.content))
        assert fault is None, (changed.number, fault)
        outcomes.append(seen)
    assert LOADED in outcomes
    assert len({*outcomes}) > len(cases) // 3, "the mutations are meant to do harm"


def test_a_mutant_is_the_same_for_the_same_number(originals: tuple[list[Original], list[Original]]) -> None:
    numbers = range(0, 100 * GGUF_SHARE, GGUF_SHARE)
    assert mutants(numbers, originals) == mutants(numbers, originals)
    assert {changed.kind for changed in mutants(numbers, originals)} == {
        "model.safetensors" if name.endswith(".safetensors") else name for name in originals[0][0].files
    }


def test_the_verdict_on_mutants(
    originals: tuple[list[Original], list[Original]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plant a mutant that ends the process, one that hangs and one that raises, among others."""
    cases = mutants(range(1, 6), originals)
    number_of = {changed.content: changed.number for changed in cases}

    def planted(path: Path, *, is_short: bool, num_bytes: int) -> tuple[str, str | None]:
        number = number_of[path.read_bytes()]
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "refused by a line", "ValueError: planted" if number == 4 else None

    monkeypatch.setattr(loader, "attempt", planted)
    faults = [judged.fault for judged in loader.verdicts(cases, tmp_path)]
    assert faults == ["ended the process with -9", None, None, "ValueError: planted", None]
    monkeypatch.setattr(loader, "attempt", lambda *_, **__: signal.pause())
    monkeypatch.setattr(loader, "LIMIT_S", 0.1)
    assert [judged.fault for judged in loader.verdicts(cases[:1], tmp_path)] == ["no outcome within 0.1 s"]


@pytest.mark.parametrize(
    ("outcome", "seconds", "grown", "fault"),
    [
        (LOADED, 0.1, 10**7, None),
        ("model.gguf ends early; fetch it again", 0.1, 10**7, None),
        ("two\nlines of a refusal", 0.1, 10**7, "the refusal is no clear line"),
        ("", 0.1, 10**7, "the refusal is no clear line"),
        (LOADED, 9.0, 10**7, "took 9.0 s"),
        (LOADED, 0.1, 10**9, "took 954 MiB"),
    ],
)
def test_the_verdict_on_a_load(outcome: str, seconds: float, grown: int, fault: str | None) -> None:
    judged = fault_of(outcome, seconds=seconds, num_bytes=10**6, grown_bytes=grown)
    assert judged is None if fault is None else judged is not None and judged.startswith(fault)


def test_a_case_is_the_same_for_the_same_number() -> None:
    assert [case(number) for number in range(300)] == [case(number) for number in range(300)]
    assert {case(number).kind for number in range(300)} == {
        *("bad body", "fields", "mutation", "bytes", "head", "framing")
    }


def answered(data: bytes | None, kind: str = "head") -> Any:
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
            return verdict(served, Case(0, kind, b"GET / HTTP/1.1\r\n\r\n"), limit_s=0.3)
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


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"HTTP/1.1 400 x\r\nContent-Length: 2\r\n\r\nno", None),
        (b"HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\nok", "200 for a request whose end is unclear"),
        (b"HTTP/1.1 400 x\r\nContent-Length: 2\r\n\r\nno" + b"HTTP/1.1 200 x\r\n\r\n", "a second answer"),
    ],
)
def test_the_verdict_on_an_unclear_end(data: bytes, fault: str | None) -> None:
    judged = answered(data, "framing")
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


@pytest.mark.parametrize(("paid", "fault"), [(200_000, None), (400_000, "long got 0.71 of its share")])
def test_the_verdict_on_shares(paid: int, fault: str | None) -> None:
    competition = Competition()
    competition.service.update({"long": 100_000, "steady": 104_000, "short": 97_000, "paid": paid})
    faults = competition.faults()
    assert faults == [] if fault is None else faults[0].startswith(fault)


def test_the_chance_of_a_slope_is_even_without_a_trend() -> None:
    rng = random.Random(2)
    times = list(range(40))
    chances = [chance_of_slope(times, [rng.random() for _ in times], rng=rng, num_tries=200) for _ in range(100)]
    assert sum(chance < 0.1 for chance in chances) <= 25
    assert sum(chance > 0.5 for chance in chances) >= 30
