"""What a request to /v1/responses asks: a chat to go on with, and what the response repeats of the request."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....engine.chat.messages import Message, read_items
from ....engine.chat.tools import read_tool_choice, read_tools
from ....engine.errors import InvalidRequestError
from ....engine.sampling_params import SamplingParams
from ...jobs.job import Job
from ..chat_request import AnswerForm, Chat, take_variables
from ..fields import take_bool
from ..response_format import read_text_format, refuse_others

_LOGPROBS = "message.output_text.logprobs"
_DEFAULTS = {"default_max_tokens": None}  # all that fits
# Accepted, and repeated where the response has a place for it; nothing else is done with them.
_REPEATED = ("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "truncation", "max_tool_calls")
_DROPPED = ("prompt_cache_options", "prompt_cache_retention", "stream_options", "context_management")
# An answer that neglected one of these would be wrong.
_REFUSED = (
    *("conversation", "prompt", "moderation", "n", "messages", "logprobs", "prompt_logprobs", "max_tokens"),
    *("reasoning_effort", "response_format"),
)
_MAX_REPEATED_CHARS = 16_384
_WORDS = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
}


@dataclass(frozen=True, kw_only=True)
class ResponseForm:
    """What is kept of a request for as long as its response is."""

    messages: Sequence[Message] = ()  # without the instructions, which do not go on to a next response
    repeated: Mapping[str, Any] = field(default_factory=dict)
    answer: AnswerForm = field(default_factory=AnswerForm)
    has_logprobs: bool = False
    is_background: bool = False
    is_stored: bool = True

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return 2 * len(json.dumps([list(self.messages), self.repeated]))


def form_of(job: Job) -> ResponseForm | None:
    """What is kept of the request behind a job; None if another API made it."""
    assert job.attachment is None or isinstance(job.attachment, ResponseForm)
    return job.attachment


@dataclass(frozen=True, kw_only=True)
class ResponseRequest:
    """A request, read."""

    chat: Chat
    params: SamplingParams
    form: ResponseForm
    stream: bool


def refuse_foreign(fields: dict[str, Any]) -> None:
    """Refuse by name what belongs to other routes, or is not built and would be missed. Raises InvalidRequestError."""
    for name in _REFUSED:
        if fields.pop(name, None) is not None:
            raise InvalidRequestError(f"{name} is not supported by /v1/responses; leave it out", param=name)


def take_response(
    fields: dict[str, Any], *, earlier: Sequence[Message] = (), previous_id: str | None = None
) -> ResponseRequest:
    """The request; `earlier` is the conversation of the response that it goes on from. Raises InvalidRequestError."""
    for name in _DROPPED:
        fields.pop(name, None)
    said = read_items(fields.pop("input", None))
    if not said:
        raise InvalidRequestError("input holds nothing but reasoning; send what is to be answered", param="input")
    messages = [*earlier, *said]
    instructions = _take_text(fields, "instructions")
    repeated: dict[str, Any] = {"instructions": instructions, **_take_repeated(fields)}
    has_logprobs = _LOGPROBS in _take_include(fields)
    is_background, is_stored = take_bool(fields, "background"), take_bool(fields, "store", default=True)
    if is_background and not is_stored:
        raise InvalidRequestError("background goes with store true only", param="background")
    chat = _take_chat(fields, _instructed(messages, instructions), repeated)
    stream = take_bool(fields, "stream")
    params = _take_params(fields, repeated, has_logprobs=has_logprobs)
    repeated |= {"background": is_background, "store": is_stored, "previous_response_id": previous_id}
    form = ResponseForm(
        messages=messages,
        repeated=repeated,
        has_logprobs=has_logprobs,
        is_background=is_background,
        is_stored=is_stored,
    )
    return ResponseRequest(chat=chat, params=params, form=form, stream=stream)


@contextlib.contextmanager
def in_response_words() -> Iterator[None]:
    """Make refusals name what this door calls it."""
    try:
        yield
    except InvalidRequestError as exc:
        name = _WORDS.get(exc.param or "")
        if name is not None:
            exc.args = (str(exc).replace(str(exc.param), name),)
            exc.param = name
        raise


def _take_chat(fields: dict[str, Any], messages: list[Message], repeated: dict[str, Any]) -> Chat:
    reasoning = _take_object(fields, "reasoning")
    if reasoning.get("effort") is not None:
        fields["reasoning_effort"] = reasoning["effort"]
    tools, choice = fields.pop("tools", None), fields.pop("tool_choice", None)
    read = read_tools(tools, are_flat=True)
    is_parallel = take_bool(fields, "parallel_tool_calls", default=True)
    repeated |= {
        "tools": tools or [],
        "tool_choice": choice or "auto",
        "parallel_tool_calls": is_parallel,
        "reasoning": {"effort": None, "summary": None} | reasoning,
    }
    return Chat(
        messages=messages,
        tools=read,
        choice=read_tool_choice(choice, read),
        is_parallel=is_parallel,
        variables=take_variables(fields),
    )


def _take_params(fields: dict[str, Any], repeated: dict[str, Any], *, has_logprobs: bool) -> SamplingParams:
    """What is left are sampling fields, max_output_tokens and top_logprobs under names of their own."""
    text = _take_object(fields, "text")
    refuse_others(text, {"format", "verbosity"}, at="text")
    answer_format = {"type": "text"} if text.get("format") is None else text["format"]
    constraint = read_text_format(answer_format)
    if constraint is not None and fields.get("structured_outputs") is not None:
        raise InvalidRequestError(
            "text.format and structured_outputs both say what shape the output has; send one of them",
            param="text.format",
        )
    repeated |= {name: fields.get(name) for name in ("max_output_tokens", "top_logprobs")}
    top = fields.pop("top_logprobs", None)
    fields["logprobs"] = (0 if top is None else top) if has_logprobs else None
    fields["max_tokens"] = fields.pop("max_output_tokens", None)
    fields["structured_outputs"] = constraint or fields.get("structured_outputs")
    params = SamplingParams.from_fields(fields, defaults=_DEFAULTS)
    repeated |= {"temperature": params.temperature, "top_p": params.top_p, "text": {**text, "format": answer_format}}
    return params


def _instructed(messages: list[Message], instructions: str | None) -> list[Message]:
    """The messages after the instructions; a template may take one system message only."""
    if instructions is None:
        return messages
    if messages[0]["role"] == "system":
        both = f"{instructions}\n\n{messages[0]['content']}"
        return [{**messages[0], "content": both}, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


def _take_include(fields: dict[str, Any]) -> list[str]:
    include = fields.pop("include", None)
    include = [] if include is None else include
    if not isinstance(include, list) or not all(isinstance(item, str) for item in include):
        raise InvalidRequestError("include must be a list of strings", param="include")
    return include


def _take_repeated(fields: dict[str, Any]) -> dict[str, Any]:
    taken = {name: fields.pop(name) for name in _REPEATED if fields.get(name) is not None}
    for name in _REPEATED:
        fields.pop(name, None)
    metadata = taken.get("metadata", {})
    if not isinstance(metadata, dict):
        raise InvalidRequestError("metadata must be an object", param="metadata")
    for name, value in taken.items():
        if len(json.dumps(value)) > _MAX_REPEATED_CHARS:
            raise InvalidRequestError(f"{name} is longer than {_MAX_REPEATED_CHARS} characters", param=name)
    return {"metadata": metadata, "truncation": "disabled", **taken}


def _take_text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.pop(name, None)
    if value is not None and not isinstance(value, str):
        raise InvalidRequestError(f"{name} must be a string", param=name)
    return value


def _take_object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    value = fields.pop(name, None)
    if value is not None and not isinstance(value, dict):
        raise InvalidRequestError(f"{name} must be an object", param=name)
    return value or {}
