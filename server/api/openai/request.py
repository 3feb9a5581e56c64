"""What OpenAI clients send: which fields are theirs and how they become a prompt and SamplingParams.

Fields that would change the answer and are not built are refused by name; those that change nothing are dropped. All
others are sampling fields, and SamplingParams has the last word on them.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ....engine.errors import InvalidRequestError
from ....engine.sampling_params import SamplingParams
from ..fields import take_bool
from ..response_format import read_response_format

COMPLETION_DEFAULTS = {"default_max_tokens": 16}
CHAT_DEFAULTS = {"default_max_tokens": None}  # all that fits

_DROPPED = frozenset(
    {
        *("store", "metadata", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "verbosity", "prediction"),
    }
)
# Not built, with the values that ask for nothing.
_COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = {"suffix": ("",)}
_CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
}


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How the answer comes."""

    stream: bool
    include_usage: bool


def take_stream_options(fields: dict[str, Any]) -> StreamOptions:
    """`stream` and `stream_options`."""
    stream = take_bool(fields, "stream")
    options = fields.pop("stream_options", None)
    if options is None:
        return StreamOptions(stream=stream, include_usage=False)
    if not stream:
        raise InvalidRequestError("stream_options goes with stream true only", param="stream_options")
    if not isinstance(options, dict):
        raise InvalidRequestError("stream_options must be an object", param="stream_options")
    options = dict(options)
    include_usage = take_bool(options, "include_usage")
    take_bool(options, "include_obfuscation")
    if options:
        name = min(options)
        raise InvalidRequestError(f"unknown field stream_options.{name}", param=f"stream_options.{name}")
    return StreamOptions(stream=stream, include_usage=include_usage)


@dataclass(frozen=True, kw_only=True)
class Echo:
    """Whether the prompt stands before the answer, and whether nothing but the prompt is wanted (max_tokens 0)."""

    is_wanted: bool
    is_all: bool


def take_echo(fields: dict[str, Any]) -> Echo:
    """`echo`, which brings the prompt's logprobs where logprobs are wanted."""
    is_wanted = take_bool(fields, "echo")
    if not is_wanted:
        return Echo(is_wanted=False, is_all=False)
    if fields.get("prompt_logprobs") is None:
        fields["prompt_logprobs"] = fields.get("logprobs")
    is_all = type(fields.get("max_tokens")) is int and fields["max_tokens"] == 0
    if is_all:
        fields["max_tokens"] = 1  # the engine draws one, which is left out
    return Echo(is_wanted=True, is_all=is_all)


def completion_params(fields: dict[str, Any]) -> SamplingParams:
    """The sampling fields of /v1/completions, everything else having been taken out."""
    _drop(fields, _COMPLETION_NEUTRAL)
    read_response_format(fields)
    best_of = fields.pop("best_of", None)
    n = 1 if fields.get("n") is None else fields["n"]
    if best_of is not None and (type(best_of) is not int or best_of != n):
        raise InvalidRequestError("best_of other than n is not supported; leave it out", param="best_of")
    return SamplingParams.from_fields(fields, defaults=COMPLETION_DEFAULTS)


def chat_params(fields: dict[str, Any]) -> SamplingParams:
    """The sampling fields of /v1/chat/completions, everything else having been taken out."""
    _drop(fields, _CHAT_NEUTRAL)
    read_response_format(fields)
    _rename_max_tokens(fields)
    fields["logprobs"] = _chat_logprobs(fields)
    return SamplingParams.from_fields(fields, defaults=CHAT_DEFAULTS)


@contextlib.contextmanager
def in_chat_words(fields: Mapping[str, Any]) -> Iterator[None]:
    """Make refusals name what the user sent: messages, not a prompt, and perhaps max_completion_tokens."""
    sent = {name for name, value in fields.items() if value is not None}
    try:
        yield
    except InvalidRequestError as exc:
        if exc.param == "prompt" and "prompt" not in sent:
            exc.param = "messages"
        elif exc.param == "max_tokens" and "max_completion_tokens" in sent:
            exc.param = "max_completion_tokens"
            exc.args = (str(exc).replace("max_tokens", "max_completion_tokens"),)
        raise


def _drop(fields: dict[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    for name in _DROPPED & set(fields):
        del fields[name]
    for name, harmless in neutral.items():
        value = fields.pop(name, None)
        if value is not None and not any(type(value) is type(item) and value == item for item in harmless):
            raise InvalidRequestError(f"{name} is not supported yet; leave it out", param=name)


def _rename_max_tokens(fields: dict[str, Any]) -> None:
    newer = fields.pop("max_completion_tokens", None)
    if newer is None:
        return
    if type(newer) is not int:
        raise InvalidRequestError("max_completion_tokens must be an integer", param="max_completion_tokens")
    if fields.get("max_tokens") not in (None, newer):
        raise InvalidRequestError(
            "max_tokens and max_completion_tokens differ; send one of them", param="max_completion_tokens"
        )
    if newer < 1:
        raise InvalidRequestError("max_completion_tokens must be at least 1", param="max_completion_tokens")
    fields["max_tokens"] = newer


def _chat_logprobs(fields: dict[str, Any]) -> Any:
    is_wanted = take_bool(fields, "logprobs")
    top = fields.pop("top_logprobs", None)
    if top is None:
        return 0 if is_wanted else None
    if type(top) is not int or not 0 <= top <= 20:
        raise InvalidRequestError("top_logprobs must be an integer from 0 to 20", param="top_logprobs")
    if not is_wanted:
        raise InvalidRequestError("top_logprobs goes with logprobs true only", param="top_logprobs")
    return top
