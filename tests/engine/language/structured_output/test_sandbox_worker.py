"""Order in which grammars are tried, with trials that the test ends."""

import errno
import json
import os
import selectors
from typing import Any

import pytest

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.language.structured_output import sandbox_worker
from splitfuse.engine.language.structured_output.sandbox_worker import (
    MAX_SLOW_WAITING,
    NUM_FIRST_TRIES,
    NUM_SECOND_TRIES,
)

OK = {"error": None, "num_bytes": 1, "is_slow": False}
TOO_SHORT: dict[str, Any] = {}


class HeldTrial:
    """Trial without a child process, whose answer `Line.end` sets."""

    def __init__(self, job: Any, tokenizer: Any, *, is_first: bool) -> None:
        self.job = job
        self.is_first = is_first
        self.fd, self._into = os.pipe()
        self.answer: dict[str, Any] | None = None

    def read(self) -> dict[str, Any] | None:
        os.close(self.fd)
        os.close(self._into)
        return self.answer


def job(number: int, *, owner: str = "") -> dict[str, Any]:
    return {"id": number, "job": {"grammar": "", "owner": owner}}


class Line:
    """Line of trials whose children are held."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self.trials = sandbox_worker.Trials(selector, None)
        self.answers: list[dict[str, Any]] = []

    def add(self, *numbers: int, owner: str = "") -> None:
        for number in numbers:
            self.trials.add(job(number, owner=owner))
        self.trials.begin()

    def running(self) -> list[tuple[int, bool]]:
        """Return (number, True for a first try) of the running trials, in the order of their start."""
        trials = sorted(self._selector.get_map().values(), key=lambda key: key.fd)
        return [(key.data.job["id"], key.data.is_first) for key in trials]

    def end(self, number: int, answer: dict[str, Any]) -> None:
        (trial,) = (key.data for key in self._selector.get_map().values() if key.data.job["id"] == number)
        trial.answer = answer
        self.trials.read(trial)
        self.trials.begin()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    file = (DEMO_FOLDER / "tokenizer.json").read_text("utf-8")
    size = json.loads((DEMO_FOLDER / "config.json").read_text("utf-8"))["vocab_size"]
    return sandbox_worker._tokenizer({"tokenizer": file, "vocab_size": size, "eos_token_ids": [0]})


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sandbox_worker, "Trial", HeldTrial)
    with selectors.PollSelector() as selector:
        line = Line(selector)
        monkeypatch.setattr(
            sandbox_worker, "_answer", lambda job, **fields: line.answers.append({"id": job["id"], **fields})
        )
        yield line
        for number, _ in line.running():
            line.end(number, OK)


def test_the_newest_is_tried_first_and_the_slow_ones_in_order(line: Line) -> None:
    line.add(1, 2, 3, 4)
    assert sorted(line.running()) == [(3, True), (4, True)]
    line.end(4, TOO_SHORT)
    line.end(3, TOO_SHORT)
    assert sorted(line.running()) == [(1, True), (2, True), (3, False), (4, False)]
    line.add(5)
    line.end(1, OK)
    assert {number for number, is_first in line.running() if is_first} == {2, 5}
    assert line.answers == [{"id": 1, **OK}]


def test_slow_ones_leave_the_first_tries_alone_and_too_many_are_refused(line: Line) -> None:
    num_slow = NUM_SECOND_TRIES + MAX_SLOW_WAITING + 2
    for number in range(num_slow):
        line.add(number)
        line.end(number, TOO_SHORT)
    assert line.running() == [(number, False) for number in range(NUM_SECOND_TRIES)]
    assert line.answers == [{"id": number, "busy": MAX_SLOW_WAITING} for number in (num_slow - 2, num_slow - 1)]
    easy = list(range(100, 100 + NUM_FIRST_TRIES))
    line.add(*easy)
    for number in easy:
        line.end(number, OK)
    assert [answer["id"] for answer in line.answers[2:]] == easy
    line.end(0, OK)
    assert (NUM_SECOND_TRIES, False) in line.running()


def test_an_owner_with_fewer_tries_comes_first_and_the_greediest_is_refused(line: Line) -> None:
    line.add(*range(8), owner="greedy")
    line.add(100, owner="other")
    line.add(*range(10, 15), owner="greedy")
    line.end(line.running()[0][0], OK)
    assert (100, True) in line.running(), "though later ones came"
    line.end(100, TOO_SHORT)
    while first := [number for number, is_first in line.running() if is_first]:
        line.end(first[0], OK)
    line.answers.clear()
    numbers = range(200, 200 + NUM_SECOND_TRIES - 1 + MAX_SLOW_WAITING)
    for number in numbers:
        line.add(number, owner="greedy")
        line.end(number, TOO_SHORT)
    line.add(101, owner="other")
    line.end(101, TOO_SHORT)
    assert line.answers == [{"id": numbers[-1], "busy": MAX_SLOW_WAITING}]
    line.end(100, OK)
    assert (101, False) in line.running(), "before greedy ones that came earlier"


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_child_that_the_system_refuses_leaves_nothing_behind(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(number, os.strerror(number))

    answers: list[dict[str, Any]] = []
    monkeypatch.setattr(sandbox_worker, "_answer", lambda job, **fields: answers.append({"id": job["id"], **fields}))
    monkeypatch.setattr(os, "fork", refuse)
    num_open = len(os.listdir("/proc/self/fd"))
    with selectors.PollSelector() as selector:
        trials = sandbox_worker.Trials(selector, None)
        for index in range(3):
            trials.add(job(index))
            trials.begin()
        assert not selector.get_map()
    assert answers == [{"id": index, "unavailable": os.strerror(number)} for index in range(3)]
    assert len(os.listdir("/proc/self/fd")) == num_open


@pytest.mark.parametrize(
    ("cpu_times", "reason"),
    [([0.5, 0.001], ""), ([0.5, 0.25], "it takes 250 ms for one token; at most 25 ms are given")],
)
def test_a_mask_is_slow_only_if_it_is_so_twice(
    cpu_times: list[float], reason: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measure twice, because the processor may have been taken away the first time."""
    measured = sandbox_worker._timed_mask
    times = iter(cpu_times)
    monkeypatch.setattr(sandbox_worker, "_timed_mask", lambda matcher: (measured(matcher)[0], next(times, 0.0)))
    assert (
        sandbox_worker.Walk(json.dumps({"grammars": [{"lark_grammar": "start: /[a-z]{9}/"}]}), tokenizer).error()
        == reason
    )
