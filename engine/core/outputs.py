"""Outputs of the engine: deltas of requests, and figures of steps. Plain data, no torch."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, overload

from ..errors import RequestFailedError


class Logprob(NamedTuple):
    """Log-probability of a token, and its rank among all tokens; 1 is the most likely."""

    logprob: float
    rank: int | None

    @property
    def decoded_token(self) -> str | None:
        """Text of the token; None without a tokenizer."""
        return None


@dataclass(frozen=True, slots=True)
class TokenLogprobs(Mapping[int, Logprob]):
    """Log-probabilities at one position, of the model's distribution before temperature and filters.

    `top` lists the most likely tokens in falling order as (token id, logprob). `logprob` and `rank` belong to the token
    at the position. As a mapping of token id to Logprob it is like vLLM's.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None

    def __getitem__(self, token_id: int) -> Logprob:
        for rank, (candidate, logprob) in enumerate(self.top, 1):
            if candidate == token_id:
                return Logprob(logprob, rank)
        if token_id != self.token_id:
            raise KeyError(token_id)
        return Logprob(self.logprob, self.rank)

    def __iter__(self) -> Iterator[int]:
        yield self.token_id
        yield from (token_id for token_id, _ in self.top if token_id != self.token_id)

    def __len__(self) -> int:
        return len(self.top) + all(token_id != self.token_id for token_id, _ in self.top)


class PromptLogprobs(Sequence[TokenLogprobs | None]):
    """Logprobs of each prompt token given the tokens before it. The entry of the first token is None.

    Kept in flat arrays: as objects they would take ten times the memory for a long prompt.
    """

    def __init__(self, num_top: int) -> None:
        self.num_top = num_top
        self._token_ids, self._ranks, self._top_ids = array("i"), array("i"), array("i")
        self._logprobs, self._top_logprobs = array("f"), array("f")
        self._columns: tuple[array[Any], ...]
        self._columns = (self._token_ids, self._logprobs, self._ranks, self._top_ids, self._top_logprobs)

    def add(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        ranks: Sequence[int],
        top_ids: Sequence[int],
        top_logprobs: Sequence[float],
    ) -> None:
        """Append positions: one token per position, and `num_top` candidates per position, flat."""
        assert len(token_ids) == len(logprobs) == len(ranks)
        assert len(top_ids) == len(top_logprobs) == self.num_top * len(token_ids)
        for own, new in zip(self._columns, (token_ids, logprobs, ranks, top_ids, top_logprobs), strict=True):
            own.extend(new)

    def extend(self, other: "PromptLogprobs") -> None:
        """Append the positions of another PromptLogprobs."""
        self.add(*other._columns)

    def to_lists(self) -> list[list[float]]:
        """Return the numbers, for `from_lists`."""
        return [list(values) for values in self._columns]

    @classmethod
    def from_lists(cls, num_top: int, lists: Sequence[Sequence[Any]]) -> "PromptLogprobs":
        """Rebuild logprobs from `to_lists`."""
        scores = cls(num_top)
        scores.add(*lists)
        return scores

    @property
    def num_bytes(self) -> int:
        """Number of bytes that the numbers take."""
        return len(self._token_ids) * (12 + 8 * self.num_top)

    def __len__(self) -> int:
        return 1 + len(self._token_ids)

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenLogprobs | None]: ...
    def __getitem__(self, index: int | slice) -> TokenLogprobs | list[TokenLogprobs | None] | None:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index] - 1  # IndexError behind the end, which ends an iteration
        if position < 0:
            return None
        candidates = slice(position * self.num_top, (position + 1) * self.num_top)
        top = zip(self._top_ids[candidates], self._top_logprobs[candidates], strict=True)
        return TokenLogprobs(self._token_ids[position], self._logprobs[position], tuple(top), self._ranks[position])


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times and counts of one output sequence. Times are seconds of the engine's monotonic clock; None: not yet."""

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finished_time: float | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_draft_tokens: int = 0  # verified drafts
    num_accepted_tokens: int = 0  # accepted drafts
    history: Any = None  # recorded by a RequestObserver, if there is one; the core reads nothing of it

    @property
    def time_in_queue(self) -> float | None:
        """Seconds from arrival to the first step."""
        return None if self.first_scheduled_time is None else self.first_scheduled_time - self.arrival_time


@dataclass(slots=True)  # not frozen: a frozen one takes three times as long to make, for each token
class OutputDelta:
    """Addition of one step to output `index` of a request. Joined deltas give the whole text and all token ids.

    `text` can be empty while token_ids is not: the bytes so far are half a character or may begin a stop string.
    The last delta of an output has a finish_reason (stop, length, abort, error) and metrics.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    metrics: RequestMetrics | None = None
    error: RequestFailedError | None = None
    prompt_logprobs: PromptLogprobs | None = None  # with the first token of output 0, if requested
    forced_from: int | None = None  # number of output tokens before a forced completion that has begun


@dataclass(frozen=True, slots=True)
class KnownOutput:
    """Known part of an output that another process began. Times are as in RequestMetrics."""

    token_ids: tuple[int, ...] = ()
    forced_from: int | None = None
    first_token_time: float | None = None  # time of the first known token
    last_token_time: float | None = None  # time since which this process waits for its next token
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class StepStats:
    """Figures of one engine step, for metrics, logs and pictures."""

    step: int
    time: float  # its end, in monotonic seconds
    duration: float  # seconds from schedule to update
    num_prefill_tokens: int
    num_decode_tokens: int
    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_blocks: int
    num_preempted: int  # preempted requests
    num_swapped_out: int = 0  # preempted requests whose tokens went to the host
    num_output_tokens: int = 0  # sampled tokens; with drafts a request can have several
    num_drafts: int = 0  # requests whose drafts were verified
    num_draft_tokens: int = 0
    num_accepted_tokens_per_pos: tuple[int, ...] = ()  # drafts whose 1st, 2nd, … token was accepted
    ttfts: tuple[float, ...] = ()  # seconds from arrival, of interactive requests whose first token came in this step
    itls: tuple[float, ...] = ()  # seconds between tokens, of interactive requests that got a further one

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON. `asdict` would copy every gap: it took 37 ms for 100 steps of 256 requests."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        line = (
            f"[Step={self.step}] prefill_tokens={self.num_prefill_tokens} decode_tokens={self.num_decode_tokens} "
            f"running={self.num_running} waiting={self.num_waiting} blocks={self.num_used_blocks}/{self.num_blocks} "
            f"preempted={self.num_preempted} ms={self.duration * 1e3:.1f} time={self.time:.4f}"
        )
        return f"{line} gap_ms={max(self.itls) * 1e3:.1f}" if self.itls else line
