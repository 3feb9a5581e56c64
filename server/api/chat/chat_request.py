"""Fields that the chat routes share: messages, tools and the template's variables.

The engine checks messages and tools, like in LLM.chat; the types here only document them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Required

from pydantic import Field, PlainValidator, SkipValidation
from typing_extensions import TypedDict

from ....engine.errors import InvalidRequestError
from ....engine.language.chat.messages import Message
from ....engine.language.chat.template import RESERVED_NAMES
from ....engine.language.chat.tools import Tool, ToolChoice, read_tool_choice
from ..request_model import ParseContext, RequestModel
from ..sampling_request import schema_of
from .message_fields import look_into_messages, look_into_tools
from .served_tools import ServedTools

if TYPE_CHECKING:
    from ....engine.serving.async_engine import AsyncEngine

_MAX_VARIABLES = 64
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Variable = str | int | float | bool | None


class TextPart(TypedDict):
    """One part of a message. Only text is supported."""

    type: Literal["text"]
    text: str


class ChatMessage(TypedDict, total=False):
    """One message. The role is system, developer (which means system), user, assistant, tool, or another one that the
    model's chat template names. Other known keys are named in X-Ignored-Fields.
    """

    role: Required[str]
    content: str | list[TextPart] | None
    name: str | None
    tool_calls: list[dict[str, Any]] | None
    tool_call_id: str | None
    reasoning_content: str | None


def _variables(variables: object) -> dict[str, Variable]:
    if not isinstance(variables, dict) or len(variables) > _MAX_VARIABLES:
        reason = f"chat_template_kwargs must be an object of at most {_MAX_VARIABLES} values"
        raise InvalidRequestError(reason, param="chat_template_kwargs")
    for name, value in variables.items():
        at = f"chat_template_kwargs.{name[:64]}"
        if name in RESERVED_NAMES or not name.isidentifier():
            raise InvalidRequestError(f"{at} is not a variable that a request may set", param=at)
        if not isinstance(value, Variable):
            raise InvalidRequestError(f"{at} must be a string, a number, true, false or null", param=at)
    return variables


@dataclass(frozen=True, kw_only=True)
class Chat:
    """Conversation to continue."""

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    choice: ToolChoice = field(default_factory=ToolChoice)
    is_parallel: bool = True  # several calls in one answer
    strict_names: frozenset[str] = frozenset()  # strict tools: their arguments must match their schemas
    customs: Sequence[str] = ()  # custom tools: functions with one string
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # of functions, by the model's name
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Variable] = field(default_factory=dict)  # variables of the chat template
    shows_reasoning: bool = True
    effort: str | None = None  # level of reasoning, also if the template does not read it

    async def render(self, engine: "AsyncEngine", *, describes_tools: bool = False) -> str:
        """Render the prompt, without tools that must not be called. Raises like PromptReader.render_chat."""
        return await engine.prompts.render_chat(
            self.messages,
            tools=self.choice.among(self.tools),
            describes_tools=describes_tools,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            variables=self.variables,
        )


class ToolFields(RequestModel):
    """Tools, the choice among them and the template's variables."""

    unsupported: ClassVar = {"chat_template": ()}
    way_out: ClassVar = {"chat_template": "start the server with --chat-template"}
    has_flat_tools: ClassVar[bool] = False  # True: a tool is the function itself, without an object around it

    tools: SkipValidation[list[dict[str, Any]] | None] = None
    tool_choice: SkipValidation[str | dict[str, Any] | None] = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: Annotated[
        dict[str, Variable], PlainValidator(_variables, json_schema_input_type=dict[str, Variable])
    ] = Field({})

    @classmethod
    def _look_into(cls, fields: Mapping[str, Any], reading: ParseContext) -> None:
        look_into_tools(fields.get("tools"), reading, are_flat=cls.has_flat_tools)
        if not cls.has_flat_tools:
            look_into_messages(fields.get("messages"), reading)

    def _chat(self, messages: list[Message], *, reasoning_effort: str | None, **more: Any) -> Chat:
        served = ServedTools.of(self.tools, are_flat=self.has_flat_tools)
        tools = served.read()
        effort = {} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}  # few templates know it
        return Chat(
            messages=messages,
            tools=tools,
            choice=read_tool_choice(served.by_own_names(self.tool_choice), tools),
            is_parallel=self.parallel_tool_calls,
            strict_names=served.strict_names,
            customs=served.customs,
            namespaces=served.namespaces,
            variables=effort | self.chat_template_kwargs,
            effort=reasoning_effort,
            **more,
        )


class ReasoningOptions(RequestModel):
    """Limits of reasoning, as OpenRouter's clients send them."""

    is_tolerant = True
    path = "reasoning."
    effort: Effort | None = None
    max_tokens: Annotated[Any, schema_of("thinking_budget")] = None


class ChatFields(ToolFields):
    """Chat fields of /v1/chat/completions."""

    reasoning_effort: Effort | None = None
    reasoning: ReasoningOptions = ReasoningOptions()
    include_reasoning: bool = True
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None  # default: true unless the final message is continued

    def chat_of(self, messages: list[Message]) -> Chat:
        """Build the chat with these messages. Raises InvalidRequestError."""
        if self.continue_final_message and self.add_generation_prompt:
            reason = "continue_final_message goes with add_generation_prompt false only"
            raise InvalidRequestError(reason, param="continue_final_message")
        generates = self.add_generation_prompt
        return self._chat(
            messages,
            reasoning_effort=self.reasoning_effort or self.reasoning.effort,
            shows_reasoning=self.include_reasoning,
            add_generation_prompt=not self.continue_final_message if generates is None else generates,
            continue_final_message=self.continue_final_message,
        )
