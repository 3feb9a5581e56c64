"""What comes out of the engine: deltas while a request runs, whole outputs at its end. Plain data, no torch."""

from dataclasses import dataclass, field

from .errors import RequestFailedError


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one output position, of the model's distribution before temperature and filters.

    `top` lists the most likely tokens in falling order as (token id, logprob); `logprob` is the drawn token's.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened to one output sequence, in seconds of the engine's monotonic clock; None = not yet."""

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finished_time: float | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one step added to output `index` of a request. Joined deltas give the whole text and all token ids.

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


@dataclass(slots=True)
class CompletionOutput:
    """One finished or growing output sequence."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    metrics: RequestMetrics | None = None
    error: RequestFailedError | None = None

    def add(self, delta: OutputDelta) -> None:
        """Append what a delta carries."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + list(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
            self.metrics, self.error = delta.metrics, delta.error


@dataclass(slots=True)
class RequestOutput:
    """All outputs of one request."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0

    @property
    def finished(self) -> bool:
        """Whether every output has ended."""
        return all(output.finish_reason is not None for output in self.outputs)


@dataclass(frozen=True, slots=True)
class StepStats:
    """One engine step, for metrics, logs and pictures."""

    step: int
    time: float  # when it ended, monotonic seconds
    duration: float  # seconds, schedule to update
    num_prefill_tokens: int
    num_decode_tokens: int
    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_blocks: int
    num_preempted: int  # requests that gave way
    num_swapped_out: int = 0  # of these, those whose tokens went to the host
    ttfts: tuple[float, ...] = ()  # seconds from arrival, of requests whose first token came in this step
    itls: tuple[float, ...] = ()  # seconds between tokens, of requests that got a further token

    def __str__(self) -> str:
        line = (
            f"[Step={self.step}] prefill_tokens={self.num_prefill_tokens} decode_tokens={self.num_decode_tokens} "
            f"running={self.num_running} waiting={self.num_waiting} blocks={self.num_used_blocks}/{self.num_blocks} "
            f"preempted={self.num_preempted} ms={self.duration * 1e3:.1f} time={self.time:.4f}"
        )
        return f"{line} gap_ms={max(self.itls) * 1e3:.1f}" if self.itls else line
