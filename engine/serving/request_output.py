"""RequestOutput: outputs of a request, joined from their deltas. Plain data, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.outputs import Logprob, OutputDelta, RequestMetrics, TokenLogprobs
from ..errors import RequestFailedError
from ..text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class DecodedLogprobs(TokenLogprobs):
    """TokenLogprobs with the text of each token. `texts`: by token id, shared by all positions."""

    texts: Mapping[int, str] = field(kw_only=True, repr=False, compare=False)

    def __getitem__(self, token_id: int) -> Logprob:
        found = TokenLogprobs.__getitem__(self, token_id)  # slots=True breaks super()
        return found._replace(decoded_token=self.texts[token_id])


class TokenTexts:
    """Cache of the texts of single tokens, which adds them to logprobs."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def add_to(self, delta: OutputDelta) -> None:
        """Replace the logprobs of a delta by DecodedLogprobs."""
        if delta.logprobs is not None:
            delta.logprobs = tuple(self.decoded(item) for item in delta.logprobs)

    def decoded(self, item: TokenLogprobs) -> DecodedLogprobs:
        """Return the logprobs of a position with texts."""
        for token_id in item:
            if token_id not in self._texts:
                self._texts[token_id] = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return DecodedLogprobs(item.token_id, item.logprob, item.top, item.rank, texts=self._texts)


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

    def add(self, delta: OutputDelta) -> None:
        """Append a delta."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + list(delta.logprobs)
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

    def add(self, delta: OutputDelta, texts: TokenTexts | None = None) -> None:
        """Append a delta, and give `texts` to its logprobs."""
        if texts is not None:
            texts.add_to(delta)
        self.outputs[delta.index].add(delta)
        if delta.prompt_logprobs is not None:
            items = list(delta.prompt_logprobs)
            self.prompt_logprobs = items if texts is None else [i if i is None else texts.decoded(i) for i in items]
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
