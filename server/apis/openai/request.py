"""Bodies of /v1/completions and /v1/chat/completions, and their conversion to prompts and SamplingParams.

A field that is not built is refused by name if it would change the answer, and ignored if not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, SkipValidation, model_validator
from pydantic_core import PydanticCustomError

from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ....engine.language.chat.messages import read_messages
from ...api.chat.chat_request import Chat, ChatFields, ChatMessage, ToolFields
from ...api.known_fields import NOTHING
from ...api.prompt import Prompts, is_token_ids, without_special_tokens
from ...api.request_model import ParseContext, RequestModel
from ...api.sampling_request import SamplingRequest, schema_of


class StreamOptions(RequestModel):
    """Options of the event stream."""

    is_tolerant = True
    path = "stream_options."
    ignored: ClassVar = {"include_obfuscation": NOTHING}
    include_usage: bool = False
    continuous_usage_stats: bool = False


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Optional parts of an answer."""

    usage: bool = False  # in an extra last chunk
    running_usage: bool = False  # in every chunk
    token_ids: bool = False
    reasoning: bool = True
    calls_are_older: bool = False  # a call is function_call, not one of tool_calls


class OpenAIRequest(SamplingRequest):
    """Fields of both routes."""

    is_tolerant = True
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Any, schema_of("max_tokens")] = None
    max_completion_tokens: Annotated[Any, schema_of("max_tokens")] = None
    add_special_tokens: bool | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("options", "goes with stream true only", {"name": "stream_options"})
        return self

    @property
    def include_usage(self) -> bool:
        """True if the last chunk holds the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def shown(self) -> Shown:
        """Optional parts of the answer."""
        options = self.stream_options
        is_continuous = options is not None and options.include_usage and options.continuous_usage_stats
        return Shown(usage=self.include_usage, running_usage=is_continuous, token_ids=self.return_token_ids)

    def _max_tokens(self, names: dict[str, str]) -> Any:
        """Return the limit under either name; if the newer one was used, note it in `names`.

        Raises InvalidRequestError.
        """
        older, newer = self.max_tokens, self.max_completion_tokens
        if None not in (older, newer) and older != newer:
            raise InvalidRequestError(
                "max_tokens and max_completion_tokens differ; send one of them", param="max_completion_tokens"
            )
        if newer is None:
            return older
        names["max_tokens"] = "max_completion_tokens"
        return newer


@dataclass(frozen=True, kw_only=True)
class Echo:
    """Place of the prompt in the answer: before it if `is_wanted`, and alone if `is_all` (max_tokens 0)."""

    is_wanted: bool
    is_all: bool


class CompletionRequest(OpenAIRequest):
    """Prompts to continue."""

    example: ClassVar = {"prompt": "Once upon a time", "max_tokens": 32}
    default_max_tokens = 16
    prompt: Prompts
    suffix: str = ""
    echo: bool = False
    best_of: Annotated[Any, schema_of("n")] = None
    logprobs: Annotated[Any, schema_of("logprobs")] = None
    prompt_logprobs: Annotated[Any, schema_of("prompt_logprobs")] = None

    def echoed(self) -> Echo:
        """Return which part of the answer is an echo of the prompt."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        is_zero = type(limit) is int and limit == 0
        return Echo(is_wanted=self.echo, is_all=self.echo and is_zero)

    def prompts(self) -> list[Any]:
        """Return the prompts in the engine's form."""
        return [
            without_special_tokens(prompt) if self.add_special_tokens is False else prompt for prompt in self.prompt
        ]

    def params(self) -> SamplingParams:
        """Build the parameters. With an echo, `logprobs` also covers the prompt. Raises."""
        if self.suffix and self.echo:
            raise InvalidRequestError("echo does not go with a suffix; leave one of them out", param="echo")
        n = (self.__pydantic_extra__ or {}).get("n", 1)
        if self.best_of is not None and (type(self.best_of) is not int or self.best_of != n):
            raise InvalidRequestError("best_of other than n is not supported; leave it out", param="best_of")
        of_prompt = self.logprobs if self.echo and self.prompt_logprobs is None else self.prompt_logprobs
        # The engine samples at least one token; an answer that is all echo leaves it out.
        names: dict[str, str] = {}
        max_tokens = 1 if self.echoed().is_all else self._max_tokens(names)
        return self.sampling(names=names, max_tokens=max_tokens, logprobs=self.logprobs, prompt_logprobs=of_prompt)


class ChatCompletionRequest(OpenAIRequest, ChatFields):
    """A conversation to answer."""

    example: ClassVar = {"messages": [{"role": "user", "content": "Hello"}]}
    unsupported: ClassVar = {
        **OpenAIRequest.unsupported,
        **ToolFields.unsupported,
        "modalities": (["text"],),
        "audio": (),
        "web_search_options": (),
        "moderation": (),
    }
    ignored: ClassVar = {name: values for name, values in OpenAIRequest.ignored.items() if name != "store"}
    messages: SkipValidation[list[ChatMessage]]
    prompt_token_ids: Annotated[
        SkipValidation[list[int] | None],
        Field(description="Prompt instead of the rendered messages, which decide how the answer is read."),
    ] = None
    functions: SkipValidation[list[dict[str, Any]] | None] = None
    function_call: SkipValidation[str | dict[str, Any] | None] = None
    include_reasoning: bool = True
    store: Annotated[
        bool | None, Field(description="A stream's answer goes on without its reader: GET /v1/chat/completions/ID.")
    ] = None
    logprobs: bool = False
    top_logprobs: Annotated[Any, schema_of("logprobs")] = None

    @property
    def shown(self) -> Shown:
        """Optional parts of the answer."""
        return replace(super().shown, reasoning=self.include_reasoning, calls_are_older=bool(self.functions))

    @classmethod
    def _look_into(cls, fields: Mapping[str, Any], reading: ParseContext) -> None:
        if isinstance(functions := fields.get("functions"), list) and functions:
            assert isinstance(fields, dict)  # a copy of the body
            fields |= _as_tools(functions, fields)
        if fields.get("store") and not fields.get("stream"):
            reading.ignore("store")
        super()._look_into(fields, reading)

    def chat(self) -> Chat:
        """Build the conversation. Raises InvalidRequestError."""
        if self.prompt_token_ids is not None and not is_token_ids(self.prompt_token_ids):
            raise InvalidRequestError("prompt_token_ids must be a list of token ids", param="prompt_token_ids")
        return self.chat_of(read_messages(self.messages))

    def params(self, *, is_forced: bool = False) -> SamplingParams:
        """Build the parameters. `is_forced`: the answer must be a call, so response_format does not apply.

        Refusals name the fields as they were sent. Raises InvalidRequestError.
        """
        if is_forced and self.response_format is not None:
            return self.model_copy(update={"response_format": None}).params()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs goes with logprobs true only", param="top_logprobs")
        names = {"prompt": "messages", "logprobs": "top_logprobs"}
        top = self.top_logprobs if self.top_logprobs is not None else 0
        budget, logprobs = ("reasoning.max_tokens", self.reasoning.max_tokens), top if self.logprobs else None
        return self.sampling(names=names, budget=budget, max_tokens=self._max_tokens(names), logprobs=logprobs)


def _as_tools(functions: list[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAI's older `functions` and `function_call` under their newer names. Raises InvalidRequestError."""
    if fields.get("tools"):
        raise InvalidRequestError("functions is the older name of tools; send one of them", param="functions")
    choice = fields.get("function_call")
    if isinstance(choice, Mapping):
        choice = {"type": "function", "function": choice}
    tools = [{"type": "function", "function": function} for function in functions]
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
