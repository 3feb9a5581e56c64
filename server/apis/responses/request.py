"""The body of POST /v1/responses: a conversation to answer, and the fields that the response repeats."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, SkipValidation
from pydantic_core import PydanticCustomError

from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ....engine.language.chat.messages import Message, read_items
from ...api.chat.answer_check import AnswerCheck
from ...api.chat.answer_format import AnswerFormat
from ...api.chat.chat_request import Chat, ReasoningOptions, ToolFields
from ...api.chat.message_fields import look_into_items
from ...api.chat.served_tools import ServedTools
from ...api.known_fields import HINTS, ITEM_FIELDS, NOTHING
from ...api.request_model import ParseContext, RequestModel
from ...api.response_format import TextFormat
from ...api.sampling_request import SamplingRequest, schema_of
from ...jobs.job import Job

_LOGPROBS = "message.output_text.logprobs"
Summary = Literal["auto", "concise", "detailed"]
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
_MAX_REPEATED_CHARS = 16_384


def _bounded(value: Any) -> Any:
    if len(json.dumps(value)) > _MAX_REPEATED_CHARS:
        raise PydanticCustomError("too_much", f"is longer than {_MAX_REPEATED_CHARS} characters")
    return value


# Accepted, and repeated if the response has a place for it, but otherwise without effect.
Repeated = Annotated[Any, AfterValidator(_bounded)]


@dataclass(frozen=True, kw_only=True)
class StoredRequest:
    """Part of a request that is kept as long as its response."""

    messages: Sequence[Message] = ()  # without the instructions, which do not carry over to the next response
    repeated: Mapping[str, Any] = field(default_factory=dict)
    answer: AnswerFormat = field(default_factory=AnswerFormat)
    has_logprobs: bool = False
    is_background: bool = False
    is_stored: bool = True
    schema: Any = None  # the content's schema, for AnswerCheck

    check: AnswerCheck | None = None  # of the complete answer, if it needs one

    def to_dict(self) -> dict[str, Any]:
        """Return the form that is stored; `read` makes the check again."""
        return asdict(replace(self, check=None))

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "StoredRequest":
        """Rebuild the request from its stored form. Earlier versions stored more."""
        names = {item.name for item in fields(cls)}
        answer, schema = AnswerFormat.read(stored["answer"]), stored.get("schema")
        values = {name: value for name, value in stored.items() if name in names}
        return cls(**values | {"answer": answer, "check": AnswerCheck.again(schema, answer)})

    @property
    def num_bytes(self) -> int:
        """Approximate size in memory."""
        return 2 * len(json.dumps([list(self.messages), self.repeated, self.schema]))


def stored_request(job: Job) -> StoredRequest | None:
    """Return the kept request behind a job, None if the job came through another API."""
    return job.attachment if isinstance(job.attachment, StoredRequest) else None


def _whole_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool with the fields that a response's function needs, if only null."""
    return {
        **({"description": None, "parameters": None, "strict": None} if tool.get("type") == "function" else {}),
        **tool,
    }


class TextOptions(RequestModel):
    """Options of the text."""

    is_tolerant = True
    path = "text."
    ignored: ClassVar = {"verbosity": ("medium",)}
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # repeated, but without effect


class Reasoning(ReasoningOptions):
    """Options of reasoning. Summaries are repeated, but have no effect."""

    ignored: ClassVar = {"summary": (), "generate_summary": (), "context": (), "mode": ()}
    summary: Summary | None = None
    generate_summary: Summary | None = None


class ResponseStreamOptions(RequestModel):
    """Options of the event stream."""

    is_tolerant = True
    path = "stream_options."
    ignored: ClassVar = {"include_obfuscation": NOTHING}


class ResponsesRequest(SamplingRequest, ToolFields):
    """A conversation to answer, in OpenAI's Responses form."""

    example: ClassVar = {"input": "Hello", "max_output_tokens": 32}
    is_tolerant = True
    has_flat_tools = True
    ignored: ClassVar = {name: values for name, values in HINTS.items() if name not in ("metadata", "store")} | {
        "max_tool_calls": (),
        "image": (),  # how images are read; images are refused themselves
    }
    # Fields of other routes, or not built. Ignoring one of them would give a wrong answer.
    unsupported: ClassVar = {
        **SamplingRequest.unsupported,
        **ToolFields.unsupported,
        **dict.fromkeys(
            (
                *("prompt", "moderation", "n", "messages", "logprobs", "prompt_logprobs", "max_tokens"),
                *("reasoning_effort", "response_format", "conversation"),
            ),
            (),
        ),
    }
    way_out: ClassVar = {"conversation": "send previous_response_id"}
    input: SkipValidation[str | list[dict[str, Any]]]
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool = False
    store: bool = True
    include: list[Include] = Field([])
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions = TextOptions()
    reasoning: Reasoning = Reasoning()
    max_output_tokens: Annotated[Any, schema_of("max_tokens")] = None
    top_logprobs: Annotated[Any, schema_of("logprobs")] = None
    metadata: Annotated[dict[str, Any], AfterValidator(_bounded)] = Field({})
    prompt_cache_key: Repeated = None
    safety_identifier: Repeated = None
    service_tier: str | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    max_tool_calls: Annotated[int | None, Field(ge=1)] = None

    @classmethod
    def _look_into(cls, fields: Mapping[str, Any], reading: ParseContext) -> None:
        super()._look_into(fields, reading)
        tools = fields.get("tools")
        has_namespaces = isinstance(tools, list) and ServedTools.of(tools, are_flat=True).namespaces
        look_into_items(
            fields.get("input"), reading, known=ITEM_FIELDS | {"namespace"} if has_namespaces else ITEM_FIELDS
        )
        if isinstance(included := fields.get("include"), list) and any(name != _LOGPROBS for name in included):
            reading.ignore("include")

    @property
    def has_logprobs(self) -> bool:
        """True if the text comes with logprobs."""
        return _LOGPROBS in self.include

    def messages(self, earlier: Sequence[Message]) -> list[Message]:
        """Append the input to the earlier conversation. Raises InvalidRequestError."""
        if self.background and not self.store:
            raise InvalidRequestError("background goes with store true only", param="background")
        served = ServedTools.of(self.tools, are_flat=True)
        input_messages = read_items(served.by_own_names(self.input))
        if not input_messages:
            raise InvalidRequestError("input holds nothing but reasoning; send a message to answer", param="input")
        return [*earlier, *input_messages]

    def chat(self, messages: Sequence[Message]) -> Chat:
        """Build the chat, instructions first.

        Templates may accept only one system message, so the two are joined. Raises.
        """
        conversation = list(messages)
        if self.instructions is not None and conversation[0]["role"] == "system":
            both = f"{self.instructions}\n\n{conversation[0]['content']}"
            conversation[0] = {**conversation[0], "content": both}
        elif self.instructions is not None:
            conversation.insert(0, {"role": "system", "content": self.instructions})
        return self._chat(conversation, reasoning_effort=self.reasoning.effort)

    def params(self, *, is_forced: bool = False) -> SamplingParams:
        """Build the parameters. `is_forced`: the answer must be a call, so text.format does not apply.

        Refusals use this route's names of fields. Raises InvalidRequestError.
        """
        top = self.top_logprobs if self.top_logprobs is not None else 0
        return self.sampling(
            names={"prompt": "input", "max_tokens": "max_output_tokens", "logprobs": "top_logprobs"},
            max_tokens=self.max_output_tokens,
            logprobs=top if self.has_logprobs else None,
            text_format=None if is_forced else self.text.format,
            budget=("reasoning.max_tokens", self.reasoning.max_tokens),
        )

    def stored(self, messages: Sequence[Message], params: SamplingParams) -> StoredRequest:
        """Return the part of the request to keep with the response."""
        names = {"instructions", "max_output_tokens", "top_logprobs", "background", "store", "previous_response_id"}
        names |= {"metadata", "truncation", "parallel_tool_calls"}
        names |= {"prompt_cache_key", "safety_identifier", "service_tier", "max_tool_calls"}
        text = self.text.model_dump(by_alias=True, exclude_unset=True)
        repeated = self.model_dump(include=names) | {
            "tools": [_whole_tool(tool) for tool in self.tools or ()],
            "tool_choice": self.tool_choice or "auto",
            "reasoning": {"effort": None, "summary": None} | self.reasoning.model_dump(exclude_none=True),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "top_logprobs": self.top_logprobs or 0,
            "text": {"format": {"type": "text"}} | text,
        }
        return StoredRequest(
            messages=messages,
            repeated=repeated,
            has_logprobs=self.has_logprobs,
            is_background=self.background,
            is_stored=self.store,
        )
