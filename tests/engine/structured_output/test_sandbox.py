"""The process that tries grammars: it survives what it is asked, answers everybody, and ends with its owner."""

import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from llguidance import LLMatcher

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.structured_output.sandbox import TrialError, Trials

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


def new_trials() -> Trials:
    text = (DEMO_FOLDER / "tokenizer.json").read_text()
    return Trials(tokenizer_json=text, vocab_size=4096, eos_token_ids=[0])


@pytest.fixture(scope="module")
def trials() -> Trials:
    return new_trials()


def outcome(trials: Trials, grammar: str) -> str:
    try:
        assert trials.run(grammar) >= 0
    except TrialError as exc:
        return str(exc)
    return ""


def test_each_outcome_has_its_words(trials: Trials) -> None:
    assert outcome(trials, GOOD) == ""
    assert outcome(trials, BROKEN) == "unclosed group"
    assert outcome(trials, CRASHING) == "it nests too deeply or takes too much memory to compile; make it smaller"
    assert outcome(trials, GREEDY) in TOO_MUCH


def test_many_at_once_get_each_their_own_answer(trials: Trials) -> None:
    grammars = [GOOD, BROKEN, CRASHING] * 40
    with ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(lambda grammar: outcome(trials, grammar), grammars))
    assert outcomes == [outcome(trials, GOOD), outcome(trials, BROKEN), outcome(trials, CRASHING)] * 40


def test_a_killed_process_is_replaced(trials: Trials) -> None:
    assert outcome(trials, GOOD) == ""
    assert trials._process is not None
    first = trials._process.pid
    os.kill(first, signal.SIGKILL)
    assert outcome(trials, GOOD) == ""
    assert trials._process.pid != first


def test_a_process_killed_amid_its_work_is_replaced(trials: Trials) -> None:
    """Its children live on for a while, and hold none of its pipes."""
    with ThreadPoolExecutor(4) as threads:
        outcomes = [threads.submit(outcome, trials, SLOW) for _ in range(4)]
        assert outcome(trials, GOOD) == ""
        assert trials._process is not None
        os.kill(trials._process.pid, signal.SIGKILL)
        assert outcome(trials, GOOD) == ""
    assert TOO_MUCH.issuperset(each.result() for each in outcomes)


def test_who_asks_between_the_end_of_a_process_and_its_death_asks_the_next_one(trials: Trials) -> None:
    assert outcome(trials, GOOD) == ""
    assert trials._process is not None
    first = trials._process
    trials._owed.close()  # its output has ended, and it cannot be waited for yet
    assert outcome(trials, GOOD) == ""
    assert trials._process is not first
    assert first.poll() is not None


def test_a_stopped_process_is_replaced(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitfuse.engine.structured_output.sandbox._LOST_S", 2.0)
    assert outcome(trials, GOOD) == ""
    assert trials._process is not None
    os.kill(trials._process.pid, signal.SIGSTOP)
    assert outcome(trials, GOOD) == ""


def test_the_process_ends_with_its_owner() -> None:
    trials = new_trials()
    assert trials._process is None, "it starts when it is needed"
    assert outcome(trials, GOOD) == ""
    process = trials._process
    assert process is not None
    assert process.poll() is None
    del trials
    gc.collect()
    assert process.poll() is not None


def test_the_process_ends_when_nobody_is_left_to_ask(trials: Trials) -> None:
    """As after a SIGKILL of the server: its input ends."""
    own = new_trials()
    assert outcome(own, GOOD) == ""
    assert own._process is not None
    assert own._process.stdin is not None
    own._process.stdin.close()
    assert own._process.wait(timeout=10) == 0
