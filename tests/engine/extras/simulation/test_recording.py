"""Recordings replay identically, whatever happens in them; differences are found."""

import errno
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_life import Life

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.simulation.replay import replay, run

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "recording.jsonl"
        path.write_text(text)
        return path

    return write


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_a_random_life_is_replayed_alike(seed: int, write: Write) -> None:
    life = Life(seed)
    recording = life.run()
    replayed = replay(write(recording))
    assert replayed.difference is None, replayed.difference
    assert replayed.num_steps == life.num_steps


class FullDisk(io.StringIO):
    """Disk that has room for a number of lines."""

    num_left = 20

    def write(self, text: str) -> int:
        self.num_left -= 1
        if self.num_left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)

    def close(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_the_recording_and_nothing_else(
    write: Write, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Life(0)
    whole.run()
    monkeypatch.setattr(io, "StringIO", FullDisk)
    life = Life(0)
    recording = life.run()
    assert life.num_steps == whole.num_steps
    (message,) = caplog.messages
    assert "--record has stopped" in message
    assert "No space left on device" in message
    assert len(recording.splitlines()) == 20
    replayed = replay(write(recording))
    assert replayed.difference is None
    assert replayed.num_steps > 0
    del life  # closes the file


@pytest.mark.slow
def test_lives_have_everything_in_them() -> None:
    """Check that these things happen in the test above, which proves nothing otherwise."""
    missing = {"preempted", "failed", "stops", "finish", "at_text", "parent", "tenant", "priority", "tokens", "costs"}
    missing |= {"prompt_logprobs", "background", "background_budget"}
    missing |= {"budget", "reason timeout", "reason abort", "moves 0", "moves 1", "moves 2"}
    for seed in range(80):
        for line in map(json.loads, Life(seed).run().splitlines()):
            missing -= set(line)
            missing.discard(f"reason {line.get('reason')}")
            missing -= {f"moves {kind}" for kind, count in enumerate(line.get("moves", ())) if count}
        if not missing:
            return
    raise AssertionError(missing)


def changed(recording: str, find: Callable[[dict[str, Any]], bool], change: Callable[[dict[str, Any]], None]) -> str:
    """Return the recording with a change to the first line that `find` accepts."""
    lines = [json.loads(line) for line in recording.splitlines()]
    change(next(line for line in lines if find(line)))
    return "".join(json.dumps(line) + "\n" for line in lines)


def is_step_with(key: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: "step" in line and bool(line.get(key)) and line["step"] > 3


PLANTED: dict[str, tuple[Callable[[dict[str, Any]], bool], Callable[[dict[str, Any]], None]]] = {
    "a chunk is one token shorter": (is_step_with("rows"), lambda line: line["rows"][-1].__setitem__(2, 0)),
    "another row first": (lambda line: len(line.get("rows", ())) > 1, lambda line: line["rows"].reverse()),
    "no request was preempted": (is_step_with("preempted"), lambda line: line.pop("preempted")),
    "no request was admitted": (is_step_with("admitted"), lambda line: line.pop("admitted")),
    "a block more": (is_step_with("blocks"), lambda line: line.__setitem__("blocks", line["blocks"] + 1)),
    "a longer queue": (is_step_with("rows"), lambda line: line.__setitem__("waiting", 99)),
    "one more has ended": (lambda line: "finished" in line, lambda line: line["finished"].append(10_000)),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_changed_decision_is_found(planted: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    find, change = PLANTED[planted]
    path = write(changed(preempting_life(), find, change))
    assert run(path) == 1
    printed = capsys.readouterr().out
    assert "recorded:" in printed
    assert "replayed:" in printed
    assert "line " in printed


def preempting_life() -> str:
    return next(text for text in (Life(seed).run() for seed in range(80)) if '"preempted"' in text)


def test_a_changed_setting_is_found(write: Write) -> None:
    def halve(line: dict[str, Any]) -> None:
        line["config"]["max_num_batched_tokens"] = 1

    assert replay(write(changed(preempting_life(), lambda line: "config" in line, halve))).difference is not None


def test_what_it_says_when_all_is_well(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    life = Life(0)
    path = write(life.run())
    assert run(path) == 0
    assert capsys.readouterr().out == f"{life.num_steps} steps replayed, identical\n"


def test_unknown_keys_and_lines_are_ignored_and_a_cut_last_line_too(write: Write) -> None:
    lines = [json.loads(line) for line in Life(1).run().splitlines()]
    lines[0]["config"]["a_setting_of_tomorrow"] = 1
    text = "".join(json.dumps({**line, "tomorrow": 1}) + '\n{"news": 1}\n' for line in lines)
    replayed = replay(write(text + '{"step": 99999, "ro'))
    assert replayed.difference is None
    assert replayed.num_steps > 0


def test_no_secrets_and_no_content_without_need() -> None:
    lives = map(Life, range(80))
    life = next(life for life in lives if life.config.tenant_weights and not life.config.enable_prefix_caching)
    recording = life.run()
    assert "alice" not in recording, "a tenant may be named by an API key"
    assert "request-0" not in recording, "whoever knows the whole id can fetch the result"
    adds = [line for line in map(json.loads, recording.splitlines()) if "add" in line]
    assert all(isinstance(line["prompt"], int) for line in adds)
    assert '"tokens"' not in recording


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not a recording"),
        ('{"a": 1}\n', "not a recording"),
        ('{"splitfuse": "recording", "format": 99}\n', "newer splitfuse"),
        ("nonsense\n", "line 1 is not JSON"),
        ("[]\n", "line 1 is not a JSON object"),
    ],
)
def test_what_is_no_recording_is_refused_in_words(text: str, part: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=part):
        replay(write(text))


def test_a_recording_with_a_hole_is_refused(write: Write) -> None:
    lines = Life(2).run().splitlines(keepends=True)
    hole = next(index for index, line in enumerate(lines) if '"done"' in line)
    with pytest.raises(ConfigError, match="does not fit what came before"):
        replay(write("".join(lines[:hole] + lines[hole + 1 :])))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        replay(tmp_path / "none.jsonl")
