"""Drafters for tests: one that mostly knows the answer, and faulty ones."""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from splitfuse.engine import LLM
from splitfuse.engine.core.request import Request
from splitfuse.engine.extras.spec_decode.manager import Speculation

Prompt = tuple[int, ...]


class Prophet:
    """Drafter that knows the answers, but sometimes drafts a wrong token, fewer tokens than wanted, or none."""

    confidence = None

    def __init__(self, answers: Mapping[tuple[Prompt, int], Sequence[int]], *, rng: random.Random, vocab_size: int):
        """Create a prophet; `answers`: output tokens of every (prompt, index)."""
        self._answers = answers
        self._rng = rng
        self._vocab_size = vocab_size
        self.forgotten: list[Request] = []

    def draft(self, wanted: Mapping[Request, int]) -> dict[Request, list[int]]:
        rng = self._rng
        drafts = {}
        for request, count in wanted.items():
            prompt = tuple(request.token_ids[: request.num_prompt_tokens])
            answer = self._answers.get((prompt, request.index), ())[request.num_output_tokens :]
            draft = [token if rng.random() < 0.85 else rng.randrange(self._vocab_size) for token in answer[:count]]
            drafts[request] = draft[: rng.choice([0, count, count, count, rng.randint(0, count)])]
        return drafts

    def num_unread_tokens(self, request: Request) -> int:
        return self._rng.choice([0, 0, 7])

    def forget(self, request: Request) -> None:
        self.forgotten.append(request)


class Faulty:
    """Drafter of the tokens of `tokens_of`, which counts its calls."""

    confidence = None

    def __init__(self, vocab_size: int) -> None:
        self.rng = random.Random(1)
        self.vocab_size = vocab_size
        self.num_calls = 0

    def draft(self, wanted: Mapping[Request, int]) -> dict[Request, list[int]]:
        self.num_calls += 1
        return {request: self.tokens_of(request, count) for request, count in wanted.items()}

    def tokens_of(self, request: Request, count: int) -> list[int]:
        return [self.rng.randrange(self.vocab_size) for _ in range(count)]

    def num_unread_tokens(self, request: Request) -> int:
        return 0

    def forget(self, request: Request) -> None:
        pass


class WrongVocabulary(Faulty):
    """Drafter with half of its tokens outside the vocabulary, some of them negative."""

    def tokens_of(self, request: Request, count: int) -> list[int]:
        return [self.rng.choice([-5, self.vocab_size, 2**40, 3, 4, 5]) for _ in range(count)]


class TooMuch(Faulty):
    """Drafter of more tokens than wanted."""

    def tokens_of(self, request: Request, count: int) -> list[int]:
        return super().tokens_of(request, count + 50)


class Raising(Faulty):
    """Drafter that fails every time, half of the times at one request after drafts for others."""

    def tokens_of(self, request: Request, count: int) -> list[int]:
        if self.rng.random() < 0.5:
            return super().tokens_of(request, count)
        raise RuntimeError("no idea")

    def draft(self, wanted: Mapping[Request, int]) -> dict[Request, list[int]]:
        super().draft(wanted)
        raise RuntimeError("no idea at all")


class Broken(Raising):
    """Drafter whose every method fails."""

    def num_unread_tokens(self, request: Request) -> int:
        raise RuntimeError("no idea what I have read")

    def forget(self, request: Request) -> None:
        raise RuntimeError("no idea what to forget")


class Hanging(Faulty):
    """Drafter that takes a second for every call."""

    def draft(self, wanted: Mapping[Request, int]) -> dict[Request, list[int]]:
        threading.Event().wait(1.0)
        return super().draft(wanted)


class Forgetful(Faulty):
    """Drafter that skips all requests."""

    def draft(self, wanted: Mapping[Request, int]) -> dict[Request, list[int]]:
        super().draft(wanted)
        return {}


def speculate(
    llm: LLM,
    drafter: object,
    *,
    max_drafts: int = 5,
    adaptive: bool = False,
    clock: Callable[[], float] = time.thread_time,
) -> Speculation:
    """Make the LLM use this drafter, whose time the clock charges. A thread's clock charges no wait for a processor."""
    speculation = Speculation(
        drafter,  # type: ignore[arg-type]
        max_drafts=max_drafts,
        vocab_size=llm.engine._input_processor._vocab_size,
        adaptive=adaptive,
        clock=clock,
    )
    use_speculation(llm, speculation)
    return speculation


def use_speculation(llm: LLM, speculation: Speculation) -> None:
    """Replace the speculation with which the LLM was built."""
    llm.engine.core.speculation = speculation
    llm.engine.pipeline._runner._draft = speculation.draft
