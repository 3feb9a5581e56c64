"""GrammarMaker: try a grammar in the sandbox, then compile it. Blocks.

`GrammarCompiler` imports this module in a thread, when the server is idle or the first constraint comes.
"""

import contextlib
import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...config.host import num_usable_cores
from ...errors import QueueFullError, UnavailableError
from ..workers.worker_process import Reply, WorkerEndedError, WorkerProcess
from .forced_completion import CompletionFinder
from .grammar import CompiledGrammar
from .params import StructuredOutputs
from .refusal import refusal
from .sandbox_worker import any_token, limits
from .to_llguidance import grammar_source, is_walked_elsewhere

_PROGRAM = Path(__file__).with_name("sandbox_worker.py")
_BUSY_S = 5.0  # seconds until the waiting slow grammars have been tried


class SandboxError(Exception):
    """Error of a grammar that cannot be used; the message tells the user why."""


class Trial(NamedTuple):
    """Trial of a usable grammar: its size and its speed."""

    num_bytes: int  # approximate memory
    is_slow: bool  # True: takes more than 50 ms to compile


class Sandbox:
    """Process that tries each new grammar before this process compiles it; program: sandbox_worker.py.

    llguidance bounds most of its work, but not all: a chain of 6,000 rules overflows the stack and would crash the
    server, 3,000 patterns under one allOf take over a minute, `multipleOf: 999983` takes 370 MB. The process starts
    with the first grammar and ends with this object.
    """

    def __init__(self, *, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        setup = {"tokenizer": tokenizer_json, "vocab_size": vocab_size, "eos_token_ids": list(eos_token_ids)}
        self._process = WorkerProcess([str(_PROGRAM)], setup=json.dumps(setup))

    def run(self, grammar: str, *, owner: str = "") -> Trial:
        """Try a grammar in its owner's turn. Blocks. Raises SandboxError, QueueFullError, UnavailableError."""
        try:
            reply = self._ask(json.dumps({"grammar": grammar, "owner": owner}))
        except WorkerEndedError as exc:
            raise UnavailableError("the process that tries grammars has ended twice; try again") from exc
        if "busy" in reply:
            raise QueueFullError(
                f"{reply['busy']} grammars that take long to compile wait; try again in {_BUSY_S:.0f} s",
                retry_after_s=_BUSY_S,
            )
        if "unavailable" in reply:
            raise UnavailableError(f"no process can be started to try a grammar ({reply['unavailable']}); try again")
        if "is_starved" in reply:
            raise UnavailableError("the machine is too busy to compile the grammar; try again later")
        if reply["error"] is not None:
            raise SandboxError(reply["error"])
        return Trial(reply["num_bytes"], reply["is_slow"])

    def _ask(self, job: str) -> Reply:
        try:
            return self._process.ask(job)
        except WorkerEndedError:  # something else may have killed the process
            return self._process.ask(job)


# Grammars that are compiled at once, for grammars that were slow in the sandbox and for all others: a processor is left
# to the steps. 80 easy ones at once would leave a step a fifteenth of it.
_NUM_SLOW = _NUM_EASY = min(2, max(1, num_usable_cores() - 1))
# Masks that are computed ahead. The first mask in a new state takes up to 10 ms, one in a known state 0.1 to 1 ms, and
# most texts that fit a grammar begin with the same states.
_NUM_MASKS_AHEAD = 8


class GrammarMaker:
    """Maker of grammars for one tokenizer, from any number of threads."""

    def __init__(self, tokenizer_json: str, *, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Build llguidance's tables. Raises llguidance's errors for a tokenizer that llguidance does not support."""
        from llguidance import LLMatcher, LLTokenizer  # here: a machine without it runs all else

        self._new_matcher = LLMatcher
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_token_ids))
        self._finder = CompletionFinder(self._tokenizer)
        digit_first = LLMatcher.grammar_from_regex(r"[0-9](?s:.)*")
        self._digits: bytes = LLMatcher(self._tokenizer, digit_first, log_level=0).compute_bitmask()
        self._sandbox = Sandbox(tokenizer_json=tokenizer_json, vocab_size=vocab_size, eos_token_ids=eos_token_ids)
        self._slow, self._easy = threading.Semaphore(_NUM_SLOW), threading.Semaphore(_NUM_EASY)
        self._turns: dict[tuple[str, bool], threading.Semaphore] = {}  # of owners: no owner's grammars are all next
        self._translating = threading.Lock()  # plain Python: 80 threads at once would take the GIL from every step

    def make(self, outputs: StructuredOutputs, *, owner: str = "") -> CompiledGrammar:
        """Compile a constraint in its owner's turn. Raises InvalidRequestError, QueueFullError, UnavailableError."""
        with contextlib.nullcontext() if is_walked_elsewhere(outputs) else self._translating:
            source = grammar_source(outputs)
        try:
            trial = self._sandbox.run(source, owner=owner)
        except SandboxError as exc:
            raise refusal(outputs, str(exc)) from exc
        turn = self._turns.setdefault((owner, trial.is_slow), threading.Semaphore(_NUM_SLOW))
        with turn, self._slow if trial.is_slow else self._easy:
            matcher = self._new_matcher(self._tokenizer, source, log_level=0, limits=limits())
            self._find_states(matcher)
        if matcher.is_error():
            raise refusal(outputs, matcher.get_error())
        return CompiledGrammar(
            matcher,
            finder=self._finder,
            vocab_size=self._tokenizer.vocab_size,
            eos_token_ids=frozenset(self._tokenizer.eos_tokens),
            num_bytes=trial.num_bytes + len(source),
            digits=self._digits if outputs.kind in ("json", "json_object") else None,
        )

    def _find_states(self, matcher: Any) -> None:
        """Compute the masks of some random steps: requests' copies have the states, so no step waits for them."""
        rng, num_taken = random.Random(0), 0
        mask = matcher.compute_bitmask()
        while num_taken + 1 < _NUM_MASKS_AHEAD and not matcher.is_stopped():
            token_id = any_token(mask, self._tokenizer.eos_tokens, rng)
            if token_id is None:
                break
            matcher.consume_token(token_id)
            num_taken += 1
            mask = matcher.compute_bitmask()
        matcher.rollback(num_taken)
