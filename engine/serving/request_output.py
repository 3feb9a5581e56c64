"""RequestOutput: outputs of a request, joined from their deltas. Plain data, no torch."""

from dataclasses import dataclass, field

from ..core.outputs import OutputDelta, RequestMetrics, TokenLogprobs
from ..core.sampling_params import SamplingParams
from ..errors import RequestFailedError


@dataclass(slots=True)
class CompletionOutput:
    """Output sequence, finished or growing."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    metrics: RequestMetrics | None = None
    error: RequestFailedError | None = None
    forced_from: int | None = None  # number of tokens before a forced completion

    def add(self, delta: OutputDelta) -> None:
        """Append a delta."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + list(delta.logprobs)
        if delta.forced_from is not None:
            self.forced_from = delta.forced_from
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
            self.metrics, self.error = delta.metrics, delta.error

    @property
    def cumulative_logprob(self) -> float | None:
        """Log-probability of all tokens together; None without `logprobs`."""
        return None if self.logprobs is None else sum(item.logprob for item in self.logprobs)


@dataclass(slots=True)
class RequestOutput:
    """Outputs of one request."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # None for the first token
    weights_version: int = 0  # version that sampled the last token
    first_weights_version: int | None = None  # version that sampled the first token
    params: SamplingParams | None = field(default=None, repr=False)  # with the seed, all that decided the outputs
    seed: int = field(default=0, repr=False)

    def note_weights(self, version: int) -> None:
        """Note the version of the weights that sampled further tokens."""
        self.weights_version = version
        if self.first_weights_version is None:
            self.first_weights_version = version

    def add(self, delta: OutputDelta) -> None:
        """Append a delta."""
        self.outputs[delta.index].add(delta)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = list(delta.prompt_logprobs)
        if delta.index == 0 and delta.metrics is not None:
            self.num_cached_tokens = delta.metrics.num_cached_tokens

    @property
    def finished(self) -> bool:
        """True if every output has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def metrics(self) -> RequestMetrics | None:
        """Metrics of the first output, once it has ended."""
        return self.outputs[0].metrics
