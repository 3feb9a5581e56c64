"""GrammarMaker: try a grammar in the sandbox, then compile it. Blocks.

`GrammarCompiler` imports this module in a thread, when the server is idle or the first constraint comes.
"""

import contextlib
import random
import threading
from collections.abc import Sequence
from typing import Any

from ...config.host import num_usable_cores
from .forced_completion import CompletionFinder
from .grammar import CompiledGrammar
from .params import StructuredOutputs
from .refusal import refusal
from .sandbox import Sandbox, SandboxError
from .sandbox_worker import any_token, limits
from .to_llguidance import grammar_source, is_walked_elsewhere

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
        self._translating = threading.Lock()  # plain Python: 80 threads at once would take the GIL from every step

    def make(self, outputs: StructuredOutputs) -> CompiledGrammar:
        """Compile a constraint. Raises InvalidRequestError, QueueFullError, UnavailableError."""
        with contextlib.nullcontext() if is_walked_elsewhere(outputs) else self._translating:
            source = grammar_source(outputs)
        try:
            trial = self._sandbox.run(source)
        except SandboxError as exc:
            raise refusal(outputs, str(exc)) from exc
        with self._slow if trial.is_slow else self._easy:
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
