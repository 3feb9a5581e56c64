"""Bodies of /v1/messages and /v1/messages/count_tokens, and their conversion to chats and SamplingParams."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SkipValidation

from ....engine.checks import Integer
from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ....engine.language.chat.tools import ToolChoice, read_tool_choice
from ....engine.language.structured_output.params import StructuredOutputs
from ...api.chat.chat_request import Chat, Variable
from ...api.request_model import ModelName, ParseContext, RequestModel, User
from ...api.sampling_request import SamplingRequest, schema_of
from .conversation import look_into_turns, read_conversation, sorted_tools
from .errors import NO_THREADS

# Fields that cannot change an answer here: caching is automatic, and no conversation is kept.
IGNORED = (
    *("betas", "cache_control", "container", "context_management", "diagnostics", "inference_geo"),
    *("service_tier", "speed", "user_profile_id", "workspace_id"),
    *("billing_policy", "compaction", "fallback_credit_token", "fallbacks"),
)
_NO_THREADS = "thread is not supported: no conversation is kept here; send the whole conversation in messages"
_REFUSED: dict[str, dict[str, Any]] = {
    "thread": {"type": "null", "description": "Not supported: no conversation is kept."}
}
_TOKENS = Integer(1, 2**31 - 1)
# Claude Code's user ids also contain a session, in one of two forms.
_SESSION = re.compile(r'"session_id": ?"[^"]*"|_session_[0-9a-f-]+$')
_MESSAGES = [{"role": "user", "content": "Hello"}]


class Metadata(RequestModel):
    """Data about the request."""

    is_tolerant = True
    path = "metadata."
    user_id: User = ""


class Thinking(RequestModel):
    """Turns thinking on or off, if the model's template lets a request choose."""

    is_tolerant = True
    path = "thinking."
    ignored: ClassVar = {"display": ()}
    budget_tokens: Annotated[Any, schema_of("thinking_budget")] = None
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]


class JsonFormat(RequestModel):
    """A JSON schema that the text must match."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    """Requirements on the output."""

    is_tolerant = True
    path = "output_config."
    ignored: ClassVar = dict.fromkeys(("task_budget",), ())
    effort: str | None = None
    format: JsonFormat | None = None


class Choice(RequestModel):
    """Rules for calling tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def among(self, tools: list[dict[str, Any]]) -> ToolChoice:
        """Convert to the engine's ToolChoice. Raises InvalidRequestError."""
        if self.type == "tool" and self.name is None:
            raise InvalidRequestError("tool_choice.name is missing", param="tool_choice.name")
        if self.type == "tool":
            return read_tool_choice({"type": "function", "name": self.name}, tools)
        if self.type == "any" and not tools:
            raise InvalidRequestError("tool_choice any needs tools", param="tool_choice")
        return read_tool_choice({"any": "required"}.get(self.type, self.type), tools)


class ConversationFields(RequestModel):
    """A conversation to answer: the fields of both routes."""

    is_tolerant = True
    more_fields = _REFUSED
    messages: SkipValidation[list[dict[str, Any]]]
    system: SkipValidation[str | list[dict[str, Any]] | None] = None
    tools: SkipValidation[list[dict[str, Any]] | None] = None
    tool_choice: Choice | None = None
    thinking: Thinking = Thinking(type="disabled")
    output_config: OutputConfig = OutputConfig()
    output_format: JsonFormat | None = None

    @classmethod
    def _look_into(cls, fields: Mapping[str, Any], reading: ParseContext) -> None:
        if "thread" in fields:
            raise InvalidRequestError(_NO_THREADS, param="thread", code=NO_THREADS)
        look_into_turns(fields.get("messages"), reading)
        for path in sorted_tools(fields.get("tools")).ignored:
            reading.ignore(path)

    def chat(self) -> Chat:
        """Build the conversation. If the last turn is the assistant's, the answer continues it.

        Raises InvalidRequestError.
        """
        messages, served = read_conversation(self.messages, system=self.system), sorted_tools(self.tools)
        tools = served.read()
        choice, goes_on = self.tool_choice or Choice(type="auto"), messages[-1]["role"] == "assistant"
        if goes_on and "tool_calls" in messages[-1]:
            raise InvalidRequestError("messages end with a call; send its tool_result", param="messages")
        return Chat(
            messages=messages,
            tools=tools,
            choice=choice.among(tools),
            is_parallel=not choice.disable_parallel_tool_use,
            strict_names=served.strict_names,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            variables=self._variables(),
            effort="none" if self._refuses_thinking else self.output_config.effort,
        )

    @property
    def _refuses_thinking(self) -> bool:
        return "thinking" in self.model_fields_set and self.thinking.type == "disabled"

    def _variables(self) -> dict[str, Variable]:
        """Return variables for the template.

        A model that can choose thinks only if `thinking` is sent, like Anthropic's.
        """
        effort = self.output_config.effort
        chosen: dict[str, Variable] = {"enable_thinking": self.thinking.type != "disabled"}
        return chosen if effort is None else chosen | {"reasoning_effort": effort}


class CountTokensRequest(ConversationFields):
    """A conversation whose tokens are counted."""

    example: ClassVar = {"messages": _MESSAGES}
    ignored: ClassVar = dict.fromkeys(
        (*IGNORED, *("max_tokens", "metadata", "stop_sequences", "stream", "temperature", "top_k", "top_p")), ()
    )
    unsupported: ClassVar = {"mcp_servers": ([],)}
    model: ModelName = None


class MessagesRequest(SamplingRequest, ConversationFields):
    """A conversation to answer."""

    is_tolerant = True
    more_fields: ClassVar = {**SamplingRequest.more_fields, **_REFUSED}
    example: ClassVar = {"messages": _MESSAGES, "max_tokens": 32}
    ignored: ClassVar = dict.fromkeys(IGNORED, ())
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "mcp_servers": ([],),
        **dict.fromkeys(("n", "logprobs", "prompt_logprobs", "stop", "response_format"), ()),
    }
    way_out: ClassVar = {"stop": "send stop_sequences", "response_format": "send output_config.format"}
    max_tokens: Annotated[Any, schema_of("max_tokens")]
    stop_sequences: Annotated[Any, schema_of("stop")] = None
    metadata: Metadata = Metadata()

    @property
    def tenant(self) -> str:
        """User for fair scheduling on a server without keys.

        A user's sessions share one tenant, and so the prefix cache.
        """
        return _SESSION.sub("", self.metadata.user_id) or self.user

    def params(self) -> SamplingParams:
        """Build the parameters. A `max_tokens` above the free context is cut to fit. Raises InvalidRequestError."""
        names = {"prompt": "messages", "stop": "stop_sequences"}
        budget = ("thinking.budget_tokens", None if self._refuses_thinking else self.thinking.budget_tokens)
        params = self.sampling(names=names, budget=budget, stop=self.stop_sequences, **self._format())
        return dataclasses.replace(params, default_max_tokens=_TOKENS.checked("max_tokens", self.max_tokens))

    def _format(self) -> dict[str, Any]:
        json_format = self.output_config.format or self.output_format
        if json_format is None:
            return {}
        name = "output_format" if self.output_config.format is None else "output_config.format"
        return {"structured_outputs": StructuredOutputs(json=json_format.schema_, param=f"{name}.schema")}
