"""The process that tries grammars: it survives every grammar, answers every question, and ends with its owner."""

import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from llguidance import LLMatcher

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.structured_output.sandbox import Sandbox, SandboxError

GOOD = LLMatcher.grammar_from_regex("[a-z]{3}")
BROKEN = LLMatcher.grammar_from_regex("(")
CRASHING = LLMatcher.grammar_from_lark(
    "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(6000)) + '\nr6000: "a"'
)
GREEDY = LLMatcher.grammar_from_json_schema({"type": "integer", "multipleOf": 999983})
SLOW = LLMatcher.grammar_from_json_schema({"allOf": [{"type": "string", "pattern": f"a{i}"} for i in range(3000)]})
TOO_MUCH = {
    "it takes more than 1.2 s to compile; make it smaller",
    "it nests too deeply or takes too much memory to compile; make it smaller",
}


def new_sandbox() -> Sandbox:
    text = (DEMO_FOLDER / "tokenizer.json").read_text()
    return Sandbox(tokenizer_json=text, vocab_size=4096, eos_token_ids=[0])


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return new_sandbox()


def outcome(sandbox: Sandbox, grammar: str) -> str:
    try:
        assert sandbox.run(grammar) >= 0
    except SandboxError as exc:
        return str(exc)
    return ""


def test_each_outcome_has_its_message(sandbox: Sandbox) -> None:
    assert outcome(sandbox, GOOD) == ""
    assert outcome(sandbox, BROKEN) == "unclosed group"
    assert outcome(sandbox, CRASHING) == "it nests too deeply or takes too much memory to compile; make it smaller"
    assert outcome(sandbox, GREEDY) in TOO_MUCH


def test_many_at_once_get_each_their_own_answer(sandbox: Sandbox) -> None:
    grammars = [GOOD, BROKEN, CRASHING] * 40
    with ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(lambda grammar: outcome(sandbox, grammar), grammars))
    assert outcomes == [outcome(sandbox, GOOD), outcome(sandbox, BROKEN), outcome(sandbox, CRASHING)] * 40


def test_a_killed_process_is_replaced(sandbox: Sandbox) -> None:
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._worker is not None
    first = sandbox._worker.process.pid
    os.kill(first, signal.SIGKILL)
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._worker.process.pid != first


def test_a_process_killed_amid_its_work_is_replaced(sandbox: Sandbox) -> None:
    """Its children live on for a while, and hold none of its pipes."""
    with ThreadPoolExecutor(4) as threads:
        outcomes = [threads.submit(outcome, sandbox, SLOW) for _ in range(4)]
        assert outcome(sandbox, GOOD) == ""
        assert sandbox._worker is not None
        os.kill(sandbox._worker.process.pid, signal.SIGKILL)
        assert outcome(sandbox, GOOD) == ""
    assert TOO_MUCH.issuperset(each.result() for each in outcomes)


def test_a_grammar_sent_between_the_end_of_a_process_and_its_death_goes_to_the_next_one(sandbox: Sandbox) -> None:
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._worker is not None
    first = sandbox._worker.process
    sandbox._worker.close()  # its output has ended, and it cannot be waited for yet
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._worker.process is not first
    assert first.poll() is not None


def test_a_stopped_process_is_replaced(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitfuse.engine.structured_output.sandbox._REPLY_TIMEOUT_S", 2.0)
    assert outcome(sandbox, GOOD) == ""
    assert sandbox._worker is not None
    os.kill(sandbox._worker.process.pid, signal.SIGSTOP)
    assert outcome(sandbox, GOOD) == ""


def test_the_process_ends_with_its_owner() -> None:
    sandbox = new_sandbox()
    assert sandbox._worker is None, "it starts when it is needed"
    assert outcome(sandbox, GOOD) == ""
    process = sandbox._worker.process
    assert process is not None
    assert process.poll() is None
    del sandbox
    gc.collect()
    assert process.poll() is not None


def test_the_process_ends_when_its_input_ends(sandbox: Sandbox) -> None:
    """As after a SIGKILL of the server."""
    own = new_sandbox()
    assert outcome(own, GOOD) == ""
    assert own._worker is not None
    assert own._worker.process.stdin is not None
    own._worker.process.stdin.close()
    assert own._worker.process.wait(timeout=10) == 0
