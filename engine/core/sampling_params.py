"""SamplingParams: the one table of the fields that sample and end a request, with their limits and defaults.

Every entry (HTTP, LLM, AsyncEngine) builds a SamplingParams, so every rule is here and only here. `check_against`
checks the fields that need the vocabulary, once per request. Knows no tensors.
"""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ..checks import (
    Choice,
    Flag,
    Integer,
    LazyRule,
    Number,
    Strings,
    Text,
    TokenIds,
    TokenNumbers,
    check_token_ids,
    ruled,
    rules_of,
    unknown_field,
)
from ..errors import InvalidRequestError

_TOKENS = Integer(1, 2**31 - 1)
_LOGPROBS = Integer(0, 20)
_DAY_MS = Integer(1, 86_400_000)
_PENALTY = Number(-2.0, 2.0)
_STRUCTURED = LazyRule("language.structured_output.params", "StructuredOutputsRule")


@dataclass(kw_only=True, slots=True)  # 40 fields in a dictionary take 1.6 KB of each kept job
class SamplingParams:
    """Sampling fields under vLLM's names. Raises InvalidRequestError.

    Give lists for `stop`, `bad_words` and ids; a single stop string is taken as a list of one. Scripts may assign
    fields before a call: `LLM` runs a clone, whose fields are checked.
    """

    max_tokens: int | None = ruled(None, _TOKENS, "Most tokens of output.")
    max_length: int | None = ruled(None, _TOKENS, "Most tokens of prompt and output together; the smaller limit wins.")
    min_tokens: int = ruled(0, Integer(0, 2**31 - 1), "No end token and no stop string before this number of tokens.")
    temperature: float = ruled(1.0, Number(0.0, 100.0), "0 is greedy.")
    top_p: float = ruled(1.0, Number(0.0, 1.0), "Sample among the likeliest tokens with this probability together.")
    top_k: int = ruled(0, Integer(-1, 2**31 - 1), "Sample among this number of likeliest tokens; 0 or -1 is off.")
    min_p: float = ruled(0.0, Number(0.0, 1.0), "Least probability, relative to the likeliest token's.")
    repetition_penalty: float = ruled(1.0, Number(0.0, 100.0, is_above_low=True), "Above 1: fewer repetitions.")
    presence_penalty: float = ruled(0.0, _PENALTY, "Taken off the logit of each token that the output has.")
    frequency_penalty: float = ruled(0.0, _PENALTY, "Taken off a logit each time the output has the token.")
    seed: int | None = ruled(None, Integer(-(2**63), 2**64 - 1), "The same seed gives the same output.")
    n: int = ruled(1, Integer(1, 64), "Outputs per prompt.")
    stop: tuple[str, ...] = ruled((), Strings(16, 256), "Strings that end the output; they are cut off.")
    stop_token_ids: tuple[int, ...] = ruled((), TokenIds(256), "Tokens that end the output.")
    include_stop_str_in_output: bool = ruled(False, Flag(), "Leave the stop string in the text.")
    ignore_eos: bool = ruled(False, Flag(), "Go on after the model's end token.")
    logit_bias: Mapping[int, float] = ruled(
        dict, TokenNumbers(1024, Number(-100.0, 100.0)), "Added to the logits of these token ids."
    )
    bad_words: tuple[str, ...] = ruled((), Strings(256, 256), "Strings that the output must not have.")
    allowed_token_ids: tuple[int, ...] | None = ruled(
        None, TokenIds(65_536, min_items=1), "The only tokens that may be sampled."
    )
    logprobs: int | None = ruled(None, _LOGPROBS, "Return logprobs of the output, and this number of likeliest.")
    prompt_logprobs: int | None = ruled(None, _LOGPROBS, "Return logprobs of the prompt, and this number of likeliest.")
    skip_special_tokens: bool = ruled(True, Flag(), "Leave special tokens out of the text.")
    truncate_prompt_tokens: int | None = ruled(None, _TOKENS, "Keep no more than this number of prompt tokens.")
    truncation_side: str = ruled("left", Choice(("left", "right")), "left keeps the last ones, right the first.")
    # StructuredOutputs of the extra; the core only carries it along.
    structured_outputs: Any = ruled(  # noqa: RUF009
        None, _STRUCTURED, "What the output must be: one constraint."
    )
    thinking_budget: int | None = ruled(
        None, Integer(-1, 2**31 - 1), "Most tokens of reasoning, which is then closed; -1: no limit."
    )
    cache_salt: str = ruled("", Text(256), "Share cached prefixes only with requests of the same salt.")
    priority: int = ruled(0, Integer(-(2**31), 2**31 - 1), "Lower first, with --scheduling-policy priority.")
    timeout_ms: int | None = ruled(None, _DAY_MS, "From arrival; then the request ends with its output so far.")
    max_queue_ms: int | None = ruled(None, _DAY_MS, "From arrival; then the request ends if it has not begun.")
    ttft_ms: int | None = ruled(None, _DAY_MS, "Goal from arrival to the first token; refused if it cannot be met.")
    itl_ms: int | None = ruled(None, _DAY_MS, "Goal of the mean time between tokens.")
    best_effort: bool = ruled(False, Flag(), "Take the request although ttft_ms cannot be met.")
    # No fields of a request.
    default_max_tokens: int | None = 64  # instead of max_tokens, cut to the tokens that fit; None: all that fit
    is_background: bool = False  # queues behind all interactive requests, whatever the scheduling policy
    wants_receipt: bool = False  # the server proves the answer by a receipt
    adapter: Any = None  # name of an adapter (LoRA); the engine puts the adapter itself here
    reasoning_format: Any = None  # ReasoningFormat of the answer, if the route knows it
    pooling: Any = None  # a PoolingTask: the request samples nothing and ends when its prompt is computed
    # The user's names of fields, and of the prompt, where they differ ("max_completion_tokens"); for refusals.
    names: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # Fields of vLLM's, for scripts written for it. Text is always made.
    detokenize: InitVar[bool] = True
    spaces_between_special_tokens: InitVar[bool] = True
    best_of: InitVar[int | None] = None
    logits_processors: InitVar[Any] = None
    guided_decoding: InitVar[Any] = None
    extra_args: InitVar[Any] = None

    def __post_init__(
        self, _detokenize: bool, _spaces: bool, best_of: int | None, processors: Any, guided: Any, extra_args: Any
    ) -> None:
        names = self.names
        if guided is not None and self.structured_outputs is None:
            self.structured_outputs = guided
        if best_of not in (None, self.n):
            reason = f"best_of {best_of} is not taken: it may equal n, {self.n}; ask for more with n"
            raise InvalidRequestError(reason, param="best_of")
        for name, value in (("logits_processors", processors), ("extra_args", extra_args)):
            if value:
                raise InvalidRequestError(f"{name} are not taken; see logit_bias and allowed_token_ids", param=name)
        for name, default, rule in _RULES:
            if (value := getattr(self, name)) is not default:
                setattr(self, name, rule.checked(names.get(name, name), value))  # in its normal form from here on
        self.top_k = max(self.top_k, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            reason = f"min_tokens {self.min_tokens} is more than {self.name_of('max_tokens')} {self.max_tokens}"
            raise InvalidRequestError(reason, param="min_tokens")

    @classmethod
    def from_fields(
        cls, fields: Mapping[str, Any], *, defaults: Mapping[str, Any] = MappingProxyType({}), **internal: Any
    ) -> "SamplingParams":
        """Build from a request's JSON fields. A field set to null counts as absent. Unknown names are refused by name.

        `defaults`: values of absent fields; a max_tokens among them replaces default_max_tokens.
        `internal`: fields that no request has: default_max_tokens, is_background, wants_receipt and names.
        """
        for name in sorted(fields.keys() - FIELD_NAMES):
            raise unknown_field(name, FIELD_NAMES)
        values = {**defaults, **{name: value for name, value in fields.items() if value is not None}}
        if "max_tokens" in defaults and fields.get("max_tokens") is None:
            internal["default_max_tokens"] = values.pop("max_tokens")
        return cls(**internal, **values)

    def clone(self) -> "SamplingParams":
        """Return a copy whose fields are checked."""
        return replace(self)

    def name_of(self, field_name: str) -> str:
        """Return the user's name for a field, or for the prompt."""
        return self.names.get(field_name, field_name)

    def check_against(self, *, vocab_size: int) -> None:
        """Check every token id against the width of the logits (not the tokenizer's size: they can differ)."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            check_token_ids(getattr(self, name) or (), vocab_size=vocab_size, param=name)


_RULES = rules_of(SamplingParams)
FIELD_NAMES = frozenset(name for name, _, _ in _RULES)
