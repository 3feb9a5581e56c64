"""The process that tries grammars survives every grammar, answers every request, and ends with its owner."""

import contextlib
import gc
import os
import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llguidance import LLMatcher

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.errors import UnavailableError
from splitfuse.engine.language.structured_output import sandbox_worker
from splitfuse.engine.language.structured_output.grammar_maker import Sandbox, SandboxError

GOOD = LLMatcher.grammar_from_regex("[a-z]{3}")
BROKEN = LLMatcher.grammar_from_regex("(")
CRASHING = LLMatcher.grammar_from_lark(
    "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(6000)) + '\nr6000: "a"'
)
GREEDY = LLMatcher.grammar_from_json_schema({"type": "integer", "multipleOf": 999983})
SLOW = LLMatcher.grammar_from_json_schema({"allOf": [{"type": "string", "pattern": f"a{i}"} for i in range(3000)]})
LARGE = LLMatcher.grammar_from_json_schema({"const": "x", "description": "x" * 120_000})
TOO_MUCH = {
    "it takes more than 1.2 s to compile; make it smaller",
    "it nests too deeply or takes too much memory to compile; make it smaller",
    "the machine is too busy to compile the grammar; try again later",
}


def new_sandbox() -> Sandbox:
    text = (DEMO_FOLDER / "tokenizer.json").read_text()
    return Sandbox(tokenizer_json=text, vocab_size=4096, eos_token_ids=[0])


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return new_sandbox()


def outcome(sandbox: Sandbox, grammar: str) -> str:
    try:
        assert sandbox.run(grammar).num_bytes >= 0
    except (SandboxError, UnavailableError) as exc:
        return str(exc)
    return ""


def test_each_outcome_has_its_message(sandbox: Sandbox) -> None:
    assert outcome(sandbox, GOOD) == ""
    assert outcome(sandbox, BROKEN) == "unclosed group"
    assert outcome(sandbox, CRASHING) == "it nests too deeply or takes too much memory to compile; make it smaller"
    assert outcome(sandbox, GREEDY) in TOO_MUCH


@pytest.mark.parametrize(
    ("limits", "error", "message"),
    [
        ("TIME_LIMIT_S, it.WALL_LIMIT_S = 0.25, 600", SandboxError, "it takes more than 0.25 s to compile"),
        ("TIME_LIMIT_S, it.WALL_LIMIT_S = 600, 0.25", UnavailableError, "the machine is too busy"),
    ],
)
def test_only_its_own_processor_time_condemns_a_grammar(
    limits: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = str(Path(sandbox_worker.__file__).parent)
    program = tmp_path / "limited.py"
    program.write_text(f"import sys; sys.path.append({folder!r}); import sandbox_worker as it; it.{limits}; it.main()")
    monkeypatch.setattr("splitfuse.engine.language.structured_output.grammar_maker._PROGRAM", program)
    with pytest.raises(error, match=message):
        new_sandbox().run(SLOW)


def test_many_at_once_get_each_their_own_answer(sandbox: Sandbox) -> None:
    grammars = [GOOD, BROKEN, CRASHING] * 40
    with ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(lambda grammar: outcome(sandbox, grammar), grammars))
    assert outcomes == [outcome(sandbox, GOOD), outcome(sandbox, BROKEN), outcome(sandbox, CRASHING)] * 40


def test_a_process_killed_amid_its_work_is_replaced(sandbox: Sandbox) -> None:
    """Kill the process while its children live on for a while, without its pipes."""
    with ThreadPoolExecutor(4) as threads:
        outcomes = [threads.submit(outcome, sandbox, SLOW) for _ in range(4)]
        assert outcome(sandbox, GOOD) == ""
        assert sandbox._process.current is not None
        os.kill(sandbox._process.current.process.pid, signal.SIGKILL)
        assert outcome(sandbox, GOOD) == ""
    assert TOO_MUCH.issuperset(future.result() for future in outcomes)


def test_a_grammar_sent_between_the_end_of_a_process_and_its_death_goes_to_the_next_one(sandbox: Sandbox) -> None:
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._process.current is not None
    first = sandbox._process.current.process
    sandbox._process.current.close()  # the output has ended, but the process has not
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._process.current.process is not first
    assert first.poll() is not None


def test_the_process_ends_with_its_owner() -> None:
    sandbox = new_sandbox()
    assert sandbox._process.current is None, "it starts when it is needed"
    assert outcome(sandbox, GOOD) == ""
    process = sandbox._process.current.process
    assert process is not None
    assert process.poll() is None
    del sandbox
    gc.collect()
    assert process.poll() is not None


def test_the_process_ends_when_its_input_ends(sandbox: Sandbox) -> None:
    """Close the input like a SIGKILL of the server does."""
    own = new_sandbox()
    assert outcome(own, GOOD) == ""
    assert own._process.current is not None
    assert own._process.current.process.stdin is not None
    own._process.current.process.stdin.close()
    assert own._process.current.process.wait(timeout=60) == 0


@contextlib.contextmanager
def no_more_files(process_id: int) -> Iterator[None]:
    """Let the process open no files meanwhile."""
    soft, hard = resource.prlimit(process_id, resource.RLIMIT_NOFILE)
    resource.prlimit(process_id, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.prlimit(process_id, resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_cannot_start_starts_next_time() -> None:
    own = new_sandbox()
    for _ in range(2):
        with no_more_files(os.getpid()), pytest.raises(UnavailableError, match="Too many open files"):
            own.run(GOOD)
        assert outcome(own, GOOD) == ""
        assert own._process.current is not None
        own._process.current.process.kill()
        own._process.current.process.wait()


def test_a_trial_that_cannot_start_starts_next_time(sandbox: Sandbox) -> None:
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._process.current is not None
    process_id = sandbox._process.current.process.pid
    with no_more_files(process_id), pytest.raises(UnavailableError, match="Too many open files"):
        sandbox.run(GOOD)
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._process.current.process.pid == process_id


def test_what_cannot_be_written_goes_to_the_next_process(sandbox: Sandbox) -> None:
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._process.current is not None
    stdin = sandbox._process.current.process.stdin
    assert stdin is not None
    stdin.close()
    assert outcome(sandbox, GOOD) == ""


def test_a_stopped_process_with_a_full_pipe_is_replaced(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitfuse.engine.language.workers.worker_process._SILENCE_S", 1.0)
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._process.current is not None
    os.kill(sandbox._process.current.process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(4) as threads:
        large = [threads.submit(outcome, sandbox, LARGE) for _ in range(4)]
        assert [future.result(timeout=120) for future in large] == [""] * 4
