"""What a request wants of the sampler and when it ends: the one place where these fields are checked.

Every door (HTTP, OpenAI shape, LLM, AsyncEngine) builds a SamplingParams, so a rule stands here or nowhere. Rules that
need the model (vocabulary, context length) are `check_against`, called once by the engine's intake. Knows no tensors.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .checks import check_int, check_text, check_token_ids, checked_float, shown
from .errors import InvalidRequestError
from .structured_output.params import StructuredOutputs

MAX_N = 64
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_ALLOWED_TOKEN_IDS = 65536
MAX_LOGPROBS = 20
MAX_TOKENS_LIMIT = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling fields under vLLM's names; limits are those of the HTTP contract. Raises InvalidRequestError.

    Give lists for `stop`, `bad_words` and ids; a single stop string is taken as a list of one.
    """

    max_tokens: int | None = None
    default_max_tokens: int | None = 64  # if max_tokens is not given, cut to what fits; None = all that fits
    max_length: int | None = None  # prompt + output, as MII and vllmini count; the smaller limit wins
    min_tokens: int = 0
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputs | None = None  # a mapping of its fields is taken too
    priority: int = 0  # lower first
    timeout_ms: int | None = None  # from arrival; then it ends with what there is, finish_reason "timeout"
    max_queue_ms: int | None = None  # the same if it has not begun by then

    def __post_init__(self) -> None:
        for name, (low, high) in _INTS.items():
            value = getattr(self, name)
            if not (value is None and name in _OPTIONAL):
                check_int(name, value, low, high)
        for name, (least, most) in _FLOATS.items():
            self._put(name, checked_float(name, getattr(self, name), least, most))
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name} must be true or false", param=name)
        self._put("top_k", max(self.top_k, 0))
        self._put("stop", _strings("stop", self.stop, MAX_STOP_STRINGS, MAX_STOP_CHARS))
        self._put("bad_words", _strings("bad_words", self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARS))
        self._put("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS))
        if self.allowed_token_ids is not None:
            self._put("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS))
        self._put("logit_bias", _bias(self.logit_bias))
        self._put("structured_outputs", _structured_outputs(self.structured_outputs))
        self._check_relations()

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # frozen: fields get their normal form once, here

    def _check_relations(self) -> None:
        if self.allowed_token_ids == ():
            raise InvalidRequestError(
                "allowed_token_ids is empty, so no token could be drawn; leave it out or list at least one id",
                param="allowed_token_ids",
            )
        if self.repetition_penalty <= 0:
            raise InvalidRequestError("repetition_penalty must be above 0", param="repetition_penalty")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}", param="min_tokens"
            )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None) -> "SamplingParams":
        """Build from a request's JSON fields. A field set to null counts as absent. Unknown names are refused by name.

        `defaults` are the door's own, e.g. {"default_max_tokens": 16}.
        """
        unknown = sorted(set(fields) - FIELD_NAMES)
        if unknown:
            raise InvalidRequestError(
                f"unknown field {unknown[0]!r}; known sampling fields: {', '.join(sorted(FIELD_NAMES))}",
                param=unknown[0],
            )
        given = {name: value for name, value in fields.items() if value is not None}
        return cls(**{**(defaults or {}), **given})

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    def check_against(self, *, vocab_size: int) -> None:
        """Check every token id against the width of the logits (not the tokenizer's size: they can differ)."""
        named = {
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": self.logit_bias,
        }
        for name, ids in named.items():
            check_token_ids(ids, vocab_size=vocab_size, param=name)


# What a request may name; a door's own default is not a request's to set.
FIELD_NAMES = frozenset(f.name for f in dataclasses.fields(SamplingParams)) - {"default_max_tokens"}

_OPTIONAL = {
    "timeout_ms",
    "max_queue_ms",
    "max_tokens",
    "default_max_tokens",
    "max_length",
    "seed",
    "logprobs",
    "prompt_logprobs",
    "truncate_prompt_tokens",
}
_INTS: dict[str, tuple[int, int]] = {
    "max_tokens": (1, MAX_TOKENS_LIMIT),
    "default_max_tokens": (1, MAX_TOKENS_LIMIT),
    "max_length": (1, MAX_TOKENS_LIMIT),
    "min_tokens": (0, MAX_TOKENS_LIMIT),
    "top_k": (-1, MAX_TOKENS_LIMIT),
    "seed": (-(2**63), 2**64 - 1),
    "n": (1, MAX_N),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "truncate_prompt_tokens": (1, MAX_TOKENS_LIMIT),
    "priority": (-(2**31), 2**31 - 1),
    "timeout_ms": (1, 86_400_000),
    "max_queue_ms": (1, 86_400_000),
}
_FLOATS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


def _strings(name: str, value: object, max_items: int, max_chars: int) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise InvalidRequestError(f"{name} must be a string or a list of strings", param=name)
    if len(items) > max_items:
        raise InvalidRequestError(f"{name} takes at most {max_items} strings, not {len(items)}", param=name)
    for item in items:
        if not 0 < len(item) <= max_chars:
            raise InvalidRequestError(
                f"{name}: each string must have 1 to {max_chars} characters, not {len(item)}", param=name
            )
        check_text(item, param=name)
    return tuple(items)


def _ids(name: str, value: object, max_items: int) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not all(type(item) is int for item in value):
        raise InvalidRequestError(f"{name} must be a list of token ids (integers)", param=name)
    if len(value) > max_items:
        raise InvalidRequestError(f"{name} takes at most {max_items} ids, not {len(value)}", param=name)
    return tuple(dict.fromkeys(value))


def _bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidRequestError("logit_bias must map token ids to numbers", param="logit_bias")
    if len(value) > MAX_LOGIT_BIAS:
        raise InvalidRequestError(
            f"logit_bias takes at most {MAX_LOGIT_BIAS} entries, not {len(value)}", param="logit_bias"
        )
    bias = {}
    for key, number in value.items():
        # JSON object keys are strings; only the plain decimal spelling of an id is one.
        if type(key) is str and key.isascii() and key.isdigit() and len(key) <= 20:
            key = int(key)
        if type(key) is not int:
            raise InvalidRequestError(f"logit_bias: {shown(key)} is not a token id", param="logit_bias")
        bias[key] = checked_float("logit_bias", number, -100.0, 100.0)
    return bias


def _structured_outputs(value: object) -> StructuredOutputs | None:
    if value is None or isinstance(value, StructuredOutputs):
        return value
    if not isinstance(value, Mapping):
        raise InvalidRequestError(
            'structured_outputs must be an object such as {"json": {"type": "object"}}', param="structured_outputs"
        )
    return StructuredOutputs.from_fields(value)
