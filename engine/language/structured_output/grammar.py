"""Grammar: the tokens that may come next in one output, and MaskMaker: the masks of all rows of a step, as bits.

A grammar follows the request's own list of tokens, like the cache: it catches up before a mask is made and rolls back
tokens that were not kept. So a step may be retried any number of times, with any drafts. llguidance does the work.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...config.host import num_usable_cores
from .forced_completion import CompletionFinder, ForcedCompletion, open_string
from .sandbox_worker import SLOW_MASK_S

# A schema bounds no number's digits, and a small model repeats one until its tokens are used up. No client reads more.
_MAX_DIGITS = 20
_LONG_NUMBER = re.compile(rb"[0-9]{%d}$" % _MAX_DIGITS)


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """Grammar that requests share. Its matcher consumes no tokens."""

    matcher: Any
    finder: CompletionFinder
    vocab_size: int  # maximum of the tokenizer's and the logits'
    eos_token_ids: frozenset[int]
    num_bytes: int  # approximate memory
    digits: bytes | None = None  # mask of the tokens that begin with a digit, if the output is JSON

    def begin(self, *, max_tokens: int | None = None, forced_from: int | None = None) -> "Grammar":
        """Return the state of one output. Its completion is forced within `max_tokens`, unless that is None.

        `forced_from`: the start of the completion, if the output's first tokens are known and it has begun in them.
        """
        return Grammar(self, max_tokens=max_tokens, forced_from=forced_from)


class Grammar:
    """State of one output. Use it from one thread, and after `follow`.

    tokens:  [0, num_confirmed) equal to the request's | [num_confirmed, len) tried, perhaps not kept
    """

    def __init__(
        self, compiled: CompiledGrammar, *, max_tokens: int | None = None, forced_from: int | None = None
    ) -> None:
        self.compiled = compiled
        self._max_tokens = max_tokens
        self._known_start = forced_from
        self.matcher: Any = None  # copy with a lexer of its own, 2 to 20 us; made when the request first runs
        self._tokens: list[int] = []
        self._num_confirmed = 0
        self._completion = ForcedCompletion(compiled.finder)
        self._error: str | None = None

    @property
    def vocab_size(self) -> int:
        """Width of a mask in tokens."""
        return self.compiled.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """End tokens of the model."""
        return self.compiled.eos_token_ids

    @property
    def mask_source(self) -> "Grammar":
        """The grammar itself."""
        return self

    def allows(self, token_ids: Sequence[int]) -> bool:
        """True if the output may go on with all of these tokens."""
        return bool(self.matcher.validate_tokens(list(token_ids)) == len(token_ids))

    def new_mask_maker(self) -> "MaskMaker":
        """Create a mask maker, which serves all grammars."""
        return MaskMaker()

    @property
    def error(self) -> str | None:
        """Reason why the output cannot go on: too much work for the next token, or a token that is not allowed."""
        if self._error is None and self.matcher.is_error():
            self._error = str(self.matcher.get_error()).partition("\n")[0]
        return self._error

    @property
    def is_accepting(self) -> bool:
        """True if the output may end here."""
        return bool(self.matcher.is_accepting())

    @property
    def finish_reason(self) -> str | None:
        """Reason for an end here: "stop", only an end token could follow; "length", the completion was forced."""
        if self._completion.is_done(len(self._tokens)):
            return "length"
        return "stop" if self.matcher.is_stopped() and self.error is None else None

    @property
    def forced_from(self) -> int | None:
        """Number of output tokens before the forced completion; None if none has begun."""
        return self._completion.start_position

    @property
    def forced_token_id(self) -> int | None:
        """Next token of the forced completion, which replaces any sampled token; None if none has begun."""
        if self.forced_from is None or self.finish_reason is not None:
            return None
        return self._completion.token_or(-1, num_tokens=len(self._tokens))

    def follow(self, token_ids: Sequence[int], *, num_prompt_tokens: int) -> None:
        """Catch up with the request's tokens, or roll back to them."""
        if self.matcher is None:
            self.matcher = self.compiled.matcher.deep_copy()
            self._retake(token_ids[num_prompt_tokens:])
        output = token_ids[num_prompt_tokens + self._num_confirmed :]
        tried = self._tokens[self._num_confirmed :]
        pairs = enumerate(zip(output, tried, strict=False))
        num_same = next((i for i, (a, b) in pairs if a != b), min(len(output), len(tried)))
        if num_same < len(tried):
            self.matcher.rollback(len(tried) - num_same)
            del self._tokens[self._num_confirmed + num_same :]
        for token_id in output[num_same:]:
            self.advance(token_id)
        self._num_confirmed += len(output)

    def advance(self, token_id: int) -> None:
        """Consume one more token, perhaps only to try it. A token that is not allowed sets `error`."""
        self.matcher.consume_token(token_id)
        self._tokens.append(token_id)

    def ends_number(self, draft: Sequence[int] = ()) -> bool:
        """True if a number of JSON has so many digits after the draft that it should end."""
        if self.compiled.digits is None or len(self._tokens) + len(draft) < _MAX_DIGITS // 4:
            return False
        tokens, text_of = [*self._tokens, *draft], self.compiled.finder.text_of
        return bool(_LONG_NUMBER.search(text_of(tokens[-_MAX_DIGITS:])) and not open_string(text_of(tokens)))

    def take(self, token_id: int) -> int:
        """Advance by the sampled token, or by one that completes the output if too few tokens would be left.

        Return the token taken.
        """
        completion = self._completion
        token_id = completion.token_or(token_id, num_tokens=len(self._tokens))
        self.advance(token_id)
        if self._max_tokens is None or self.error is not None or self.matcher.is_stopped():
            return token_id
        num_left = self._max_tokens - len(self._tokens)
        if completion.is_due(num_left) and not completion.fits(self.matcher, self._tokens, num_left=num_left):
            self.matcher.rollback(1)
            self._tokens.pop()
            completion.start(self.matcher, self._tokens, num_left=num_left + 1)
            token_id = completion.token_or(token_id, num_tokens=len(self._tokens))
            self.advance(token_id)
        return token_id

    def _retake(self, output: Sequence[int]) -> None:
        """Take the tokens that the request came with. Checks are repeated, so that later decisions are equal."""
        for token_id in output:
            if self._max_tokens is not None and len(self._tokens) == self._known_start:
                self._completion.start(self.matcher, self._tokens, num_left=self._max_tokens - len(self._tokens))
            if self.take(token_id) != token_id:
                self.fail("its completion would go on otherwise than it began")
                return

    def fail(self, reason: str) -> None:
        """Set `error`."""
        self._error = reason


class MaskMaker:
    """Maker of the masks of a step's grammars: on the host, all in one call."""

    def __init__(self) -> None:
        self._executor: Any = None  # starts threads, so it is created for the first mask that needs it
        self._was_slow = False

    def fill(self, grammars: Sequence[Grammar], drafts: Sequence[Sequence[int]], masks: Tensor) -> None:
        """Set the bits of the tokens that may follow each grammar's tokens and each of its drafts: masks [M, W] int32.

        A grammar has one row and one more per draft token, in order. No token is allowed after a draft that does not
        fit, or if the grammar has an `error`. The grammars are not changed.
        """
        if self._was_slow:
            _fail_the_slow(grammars)
        work: list[tuple[Any, int, list[int]]] = []
        row = 0
        for grammar, draft in zip(grammars, drafts, strict=True):
            if grammar.error is None:
                work.append((grammar.matcher, row, list(draft)))
            row += 1 + len(draft)
        start = time.perf_counter()
        self._fill(work, masks)
        self._was_slow = time.perf_counter() - start > SLOW_MASK_S
        row = 0
        for grammar, draft in zip(grammars, drafts, strict=True):
            for length in range(1 + len(draft)):
                if grammar.error is None and grammar.ends_number(draft[:length]):
                    _leave_out(grammar.compiled.digits, masks[row])
                row += 1

    def _fill(self, work: list[tuple[Any, int, list[int]]], masks: Tensor) -> None:
        row_bytes = masks.shape[1] * masks.element_size()
        if len(work) == 1 and not work[0][2]:  # not worth waking a thread, which takes 50 us
            matcher, row, _ = work[0]
            matcher.unsafe_compute_mask_ptr(masks[row].data_ptr(), row_bytes)
            return
        if self._executor is None:
            from llguidance import LLExecutor

            # The step waits meanwhile. By default 80 % of the processors are used, so one of two.
            self._executor = LLExecutor(num_threads=num_usable_cores())
        into = (masks.data_ptr(), row_bytes, len(masks))
        plain = [(matcher, row) for matcher, row, draft in work if not draft]
        drafted = [item for item in work if item[2]]
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, *into)
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *into)


def _leave_out(tokens: bytes | None, mask: Tensor) -> None:
    """Clear the bits of these tokens, unless no other token may follow."""
    assert tokens is not None
    others = torch.frombuffer(bytearray(tokens), dtype=torch.int32).bitwise_not()[: len(mask)]
    left = mask[: len(others)] & others
    if left.any():
        mask[: len(others)] = left


def _fail_the_slow(grammars: Sequence[Grammar]) -> None:
    """Time each grammar's mask alone, in CPU seconds, and fail the slow ones, after a step's masks took long."""
    for grammar in grammars:
        start = time.thread_time()
        grammar.matcher.compute_bitmask()
        seconds = time.thread_time() - start
        if seconds > SLOW_MASK_S:
            limit = f"at most {SLOW_MASK_S * 1e3:g} ms are given"
            grammar.fail(f"its grammar took {seconds * 1e3:.0f} ms for one token; {limit}")
