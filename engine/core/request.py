"""Request: one output sequence, as a list of tokens and the number of them that the model has computed.

    token_ids:  [0, num_computed_tokens) computed | [num_computed_tokens, num_tokens) not yet | placeholders

Tokens that a step in flight computes count as computed. A token that a step in flight will sample is a placeholder: a
number, not an entry of token_ids. There is no prefill and no decode here, only catching up. Knows no text, no tensors
and no HTTP.
"""

from array import array
from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from typing import Any

from .outputs import KnownOutput, RequestMetrics
from .sampling_params import SamplingParams

NOTHING_KNOWN = KnownOutput()
_METRICS = [field.name for field in fields(RequestMetrics) if field.name != "history"]  # attributes of a Request


class Status(Enum):
    """State of a request. PREEMPTED waits like WAITING, but has run before."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """One sequence. After construction only the scheduler writes to it."""

    __slots__ = (
        "arrival_order", "arrival_time", "bad_words", "block_hashes", "block_table",
        "finish_reason", "finished_time", "first_scheduled_time", "first_token_time", "grammar",
        "history", "host_block_table", "index", "is_background", "is_greedy", "is_plainly_sampled", "last_token_time",
        "max_num_tokens", "needs_prompt_logprobs", "num_accepted_tokens", "num_cached_tokens", "num_computed_tokens",
        "num_draft_tokens", "num_output_placeholders", "num_preemptions", "num_prompt_tokens", "num_read_tokens",
        "params", "parent", "request_id", "seed", "status", "stop_reason", "stop_token_ids", "tenant", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        *,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        max_num_tokens: int,
        seed: int,
        index: int = 0,
        stop_token_ids: frozenset[int] = frozenset(),
        bad_words: tuple[tuple[int, ...], ...] = (),
        grammar: Any = None,
        tenant: str = "",
        parent: "Request | None" = None,
        arrival_time: float = 0.0,
        known: KnownOutput = NOTHING_KNOWN,
    ) -> None:
        assert prompt_token_ids, "the input processor refuses empty prompts"
        assert len(prompt_token_ids) + len(known.token_ids) < max_num_tokens, "there is room for a token"
        self.request_id = request_id
        self.index = index
        self.params = params
        self.is_background = params.is_background  # an attribute: every step reads it of every request
        self.seed = seed
        self.max_num_tokens = max_num_tokens  # prompt and output together
        self.stop_token_ids = stop_token_ids  # the model's end tokens (unless ignored) and the request's own
        self.bad_words = bad_words  # token sequences that must not be completed
        self.grammar = grammar  # the sampler's TokenConstraint; follows token_ids by itself, in the step's thread
        self.tenant = tenant  # requests of one tenant may share blocks, and share its part of the machine
        self.parent = parent  # first output of the same prompt; None for that output itself
        self.arrival_time = arrival_time
        self.arrival_order = 0

        # The n outputs of a prompt share its logprobs, which are computed with the first one, before its first token.
        self.needs_prompt_logprobs = params.prompt_logprobs is not None and index == 0 and not known.token_ids
        self.is_greedy = not params.temperature or params.top_k == 1  # filters keep ties, which bfloat16 has often
        # True if temperature, filters and noise alone decide. An attribute, like is_greedy: read of every row.
        self.is_plainly_sampled = grammar is None and params.logprobs is None and not self.changes_logits(0)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.token_ids = [*prompt_token_ids, *known.token_ids]
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.num_read_tokens = 0  # tokens computed before a preemption; prompt logprobs up to them are known
        self.block_table: array[int] = array("i")  # the kernels' tables are made of its bytes
        self.host_block_table: list[int] = []  # host blocks of its computed tokens while it is swapped out
        self.block_hashes: list[bytes] = []  # hashes of its first full blocks, as many as were needed
        self.status = Status.WAITING
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.num_preemptions = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_cached_tokens = 0
        self.first_scheduled_time: float | None = known.first_token_time
        self.first_token_time: float | None = known.first_token_time
        self.last_token_time: float | None = known.last_token_time
        self.finished_time: float | None = None
        self.history: Any = None  # written by a RequestObserver at the end

    @property
    def num_tokens(self) -> int:
        """Number of known tokens, prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Number of sampled tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Number of tokens and placeholders that no step has computed yet; 1 while decoding."""
        return len(self.token_ids) + self.num_output_placeholders - self.num_computed_tokens

    @property
    def num_skippable_tokens(self) -> int:
        """Number of tokens that a cache may replace: all but the last, and none that a prompt logprob still needs."""
        return self._num_logprobs_read if self.needs_host_sampling else self.num_tokens - 1

    @property
    def needs_host_sampling(self) -> bool:
        """True if its next row needs the host before another step can be decided.

        Only prompt logprobs that are still to be computed do. All else runs on the device, and the host follows: stop
        strings are found one step late; a grammar's mask is made while the step that needs it computes.
        """
        return self.needs_prompt_logprobs and self._num_logprobs_read < self.num_prompt_tokens - 1

    @property
    def _num_logprobs_read(self) -> int:
        return max(self.num_read_tokens, self.num_computed_tokens)

    @staticmethod
    def any_needs_host_sampling(requests: "Iterable[Request]") -> bool:
        """True if one of the requests `needs_host_sampling`. Every step asks, so most cost an attribute, not a call."""
        return True in [request.needs_prompt_logprobs and request.needs_host_sampling for request in requests]

    def changes_logits(self, num_output_tokens: int) -> bool:
        """True if logits processors must change its logits before the token after `num_output_tokens` is sampled.

        The one list of the parameters that do, beside the grammar's mask; `logits_processors.py` applies each.
        """
        params = self.params
        return bool(
            params.logit_bias
            or params.allowed_token_ids is not None
            or self.bad_words
            or params.min_tokens > num_output_tokens
            or params.repetition_penalty != 1.0
            or params.presence_penalty
            or params.frequency_penalty
            or (self.grammar is not None and params.ignore_eos)
        )

    @property
    def is_finished(self) -> bool:
        """True if it has ended, for any reason."""
        return self.status is Status.FINISHED

    def constrain(self, grammar: Any, params: SamplingParams) -> None:
        """Restrict its tokens from now on, and note the parameters that say so. No step is in flight."""
        self.grammar, self.params, self.is_plainly_sampled = grammar, params, False

    def metrics(self) -> RequestMetrics:
        """Return its times and counts so far; the history once it has ended."""
        return RequestMetrics(**{name: getattr(self, name) for name in _METRICS}, history=self.history)

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id}/{self.index} {self.status.value} "
            f"{self.num_computed_tokens}/{self.num_tokens} tokens, {len(self.block_table)} blocks)"
        )
