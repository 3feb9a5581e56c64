"""Grammar: which tokens may come next in one output, and TokenMasks: the same for the rows of a step, as bits.

A grammar follows the request's own list of tokens, as the cache does: it catches up before a mask is made and rolls
back tokens that were not kept. So a step may be tried any number of times, with any drafts. llguidance does the work.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...device import to_device
from .forced_completion import CompletionFinder, ForcedCompletion
from .sandbox_worker import SLOW_MASK_S


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar that requests share. Its matcher consumes nothing."""

    matcher: Any
    finder: CompletionFinder
    vocab_size: int  # the tokenizer's or the logits', whichever is more
    eos_token_ids: frozenset[int]
    num_bytes: int  # about what it takes

    def begin(self, *, max_tokens: int | None = None, forced_from: int | None = None) -> "Grammar":
        """The state of one output of at most so many tokens, whose completion is forced; None: it is not.

        `forced_from`: where the completion begins, if that is known of the tokens that come first.
        """
        return Grammar(self, max_tokens=max_tokens, forced_from=forced_from)


class Grammar:
    """The state of one output. Use it from one thread, and after `follow`.

    tokens:  [0, num_confirmed) as in the request | [num_confirmed, len) tried, and perhaps not kept
    """

    def __init__(
        self, compiled: CompiledGrammar, *, max_tokens: int | None = None, forced_from: int | None = None
    ) -> None:
        self.compiled = compiled
        self._max_tokens = max_tokens
        self._known_start = forced_from
        self.matcher: Any = None  # a copy with a lexer of its own, 2 to 20 us; made when the request first runs
        self._tokens: list[int] = []
        self._num_confirmed = 0
        self._completion = ForcedCompletion(compiled.finder)
        self._error: str | None = None

    @property
    def error(self) -> str | None:
        """Why it can go no further: too much work for the next token, or a token that it does not allow."""
        if self._error is None and self.matcher.is_error():
            self._error = str(self.matcher.get_error()).partition("\n")[0]
        return self._error

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        return bool(self.matcher.is_accepting())

    @property
    def finish_reason(self) -> str | None:
        """Why the output ends here: "stop", only an end token could follow, or "length", its completion was forced."""
        if self._completion.is_done(len(self._tokens)):
            return "length"
        return "stop" if self.matcher.is_stopped() and self.error is None else None

    @property
    def forced_from(self) -> int | None:
        """The number of output tokens before its forced completion; None if none has begun."""
        return self._completion.start_position

    @property
    def forced_token_id(self) -> int | None:
        """The next token, whatever is sampled, if its forced completion has begun."""
        if self.forced_from is None or self.finish_reason is not None:
            return None
        return self._completion.token_or(-1, num_tokens=len(self._tokens))

    def follow(self, token_ids: Sequence[int], *, num_prompt_tokens: int) -> None:
        """Catch up with these tokens of the request, or roll back to them."""
        if self.matcher is None:
            self.matcher = self.compiled.matcher.deep_copy()
            self._take_again(token_ids[num_prompt_tokens:])
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
        """Take one more token, if only to try it. One that is not allowed sets `error`."""
        self.matcher.consume_token(token_id)
        self._tokens.append(token_id)

    def take(self, token_id: int) -> int:
        """Advance by the sampled token, or by one that completes the output where too few tokens would be left.

        Returns the token taken.
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

    def _take_again(self, output: Sequence[int]) -> None:
        """Take the tokens with which the request came: each check is made again, so the next decisions are the same."""
        for token_id in output:
            if self._max_tokens is not None and len(self._tokens) == self._known_start:
                self._completion.start(self.matcher, self._tokens, num_left=self._max_tokens - len(self._tokens))
            if self.take(token_id) != token_id:
                self.fail("its completion would go on otherwise than it began")
                return

    def fail(self, reason: str) -> None:
        """Set `error`."""
        self._error = reason


class TokenMasks:
    """Makes the masks of a step: on the host, all in one call, copied to the device once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._executor: Any = None  # has threads, so it is made with the first grammar
        # Row b: what byte b of a mask adds to its eight logits. Adding to 128,000 takes 27 us, masked_fill 190.
        bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
        self._biases = torch.where(bits == 1, 0.0, float("-inf")).to(device)
        self._was_slow = False

    def allowed(self, grammars: Sequence[Grammar], drafts: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Which tokens may follow each grammar's, and then each of its drafts': [M, W] int32 on the host, 32 per word.

        One row per grammar and one more for each of its draft tokens, in order; no token is allowed after a draft that
        does not fit, or where a grammar has an `error`. The grammars stay as they are. 32 W is at least the width of
        the logits.
        """
        if self._was_slow:
            _fail_the_slow(grammars)
        num_rows = len(grammars) + sum(map(len, drafts or ()))
        num_words = -(-grammars[0].compiled.vocab_size // 32)
        masks = torch.zeros(num_rows, num_words, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        work: list[tuple[Any, int, list[int]]] = []
        row = 0
        for grammar, draft in zip(grammars, drafts or [()] * len(grammars), strict=True):
            if grammar.error is None:
                work.append((grammar.matcher, row, list(draft)))
            row += 1 + len(draft)
        start = time.perf_counter()
        self._fill(work, masks)
        self._was_slow = time.perf_counter() - start > SLOW_MASK_S
        return masks

    def force(self, mask: Tensor, token_id: int) -> None:
        """Allow one token alone; mask [W] int32 on the host."""
        mask.zero_()
        mask.view(torch.uint8)[token_id // 8] = 1 << token_id % 8

    def add_to(self, logits: Tensor, rows: Sequence[int] | Tensor, masks: Tensor) -> None:
        """Make what is not allowed minus infinity, in place: masks[i] is for logits[rows[i]], [S, V] float32.

        No row comes twice, and they ascend.
        """
        words = to_device(masks, self._device).view(torch.uint8)
        biases = functional.embedding(torch.empty_like(words, dtype=torch.int32).copy_(words), self._biases)
        biases = biases.flatten(1)[:, : logits.shape[1]]
        if len(rows) == len(logits):
            logits.add_(biases)
        else:
            logits.index_add_(0, to_device(torch.as_tensor(rows), self._device), biases)

    def _fill(self, work: list[tuple[Any, int, list[int]]], masks: Tensor) -> None:
        row_bytes = masks.shape[1] * masks.element_size()
        if len(work) == 1 and not work[0][2]:  # not worth waking a thread, which takes 50 us
            matcher, row, _ = work[0]
            matcher.unsafe_compute_mask_ptr(masks[row].data_ptr(), row_bytes)
            return
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor()
        into = (masks.data_ptr(), row_bytes, len(masks))
        plain = [(matcher, row) for matcher, row, draft in work if not draft]
        drafted = [item for item in work if item[2]]
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, *into)
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *into)


def _fail_the_slow(grammars: Sequence[Grammar]) -> None:
    """A step's masks took long: time each alone, in CPU seconds, and fail the slow ones."""
    for grammar in grammars:
        start = time.thread_time()
        grammar.matcher.compute_bitmask()
        seconds = time.thread_time() - start
        if seconds > SLOW_MASK_S:
            limit = f"at most {SLOW_MASK_S * 1e3:g} ms are given"
            grammar.fail(f"its grammar took {seconds * 1e3:.0f} ms for one token; {limit}")
