"""What the chat routes share: the conversation and the tools of a request, and the form in which the answer comes."""

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...engine.chat.answer_parser import AnswerReader, call_reader, detected_style
from ...engine.chat.messages import Message, read_messages
from ...engine.chat.reasoning_parser import CLOSING, OPENING, ThinkingReader
from ...engine.chat.template import RESERVED_NAMES, ChatTemplate
from ...engine.chat.tools import Tool, ToolChoice, read_tool_choice, read_tools
from ...engine.checks import check_text
from ...engine.errors import InvalidRequestError
from ...engine.sampling_params import SamplingParams
from ...engine.structured_output.answer_grammar import STYLE_OF_OTHERS, answer_grammar
from ...engine.structured_output.params import StructuredOutputs
from ..service import Service
from ..settings import Settings
from .fields import take_bool

_MAX_VARIABLES = 64


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation to go on with."""

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    choice: ToolChoice = field(default_factory=ToolChoice)
    is_parallel: bool = True  # several calls in one answer
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)  # for the template

    def render(self, template: ChatTemplate) -> str:
        """The text of the prompt. Tools that must not be called are not shown. Raises InvalidRequestError."""
        return template.render(
            self.messages,
            tools=self.choice.among(self.tools),
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            variables=self.variables,
        )


@dataclass(frozen=True, kw_only=True)
class AnswerForm:
    """How an answer is taken apart."""

    style: str | None = None  # of the calls that are looked for
    tools: list[Tool] = field(default_factory=list)  # that may be called
    is_forced: bool = False  # it must be a call
    max_calls: int | None = None
    thinks: bool = False
    is_open: bool = False  # the prompt ends within the reasoning

    @property
    def is_plain(self) -> bool:
        """Whether an answer is content and nothing else."""
        return self.style is None and not self.thinks

    def reader(self) -> AnswerReader:
        """A reader of one answer."""
        return AnswerReader(
            ThinkingReader(is_open=self.is_open) if self.thinks else None,
            None if self.style is None else call_reader(self.style, self.tools),
            max_calls=self.max_calls,
        )


def take_chat(fields: dict[str, Any]) -> Chat:
    """The fields of a chat. Raises InvalidRequestError."""
    messages = read_messages(fields.pop("messages", None))
    tools = read_tools(fields.pop("tools", None))
    choice = read_tool_choice(fields.pop("tool_choice", None), tools)
    continues = take_bool(fields, "continue_final_message")
    add_generation_prompt = take_bool(fields, "add_generation_prompt", default=not continues)
    if continues and add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message goes with add_generation_prompt false only", param="continue_final_message"
        )
    return Chat(
        messages=messages,
        tools=tools,
        choice=choice,
        is_parallel=take_bool(fields, "parallel_tool_calls", default=True),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continues,
        variables=take_variables(fields),
    )


async def chat_prompt(service: Service, chat: Chat) -> tuple[list[int], AnswerForm]:
    """Token ids of a conversation in the model's chat template, and the form of the answer.

    Raises InvalidRequestError, NotReadyError.
    """
    template = service.tokenizer.chat_template
    text = await asyncio.to_thread(chat.render, template)
    check_text(text, param="messages")
    form = answer_form(chat, text, template, service.settings)
    return await service.encode(text, add_special_tokens=False), form


def answer_form(chat: Chat, prompt: str, template: ChatTemplate, settings: Settings) -> AnswerForm:
    """What to expect of a model that has this template and reads this prompt. Raises InvalidRequestError."""
    thinks = OPENING in template.source if settings.reasoning_parser == "auto" else settings.reasoning_parser == "think"
    is_open = thinks and _ends_in_reasoning(chat, prompt)
    style = _style(chat, template, settings)
    is_parallel = chat.is_parallel and chat.choice.mode != "named"
    return AnswerForm(
        style=style,
        tools=chat.choice.among(chat.tools),
        is_forced=chat.choice.is_forced,
        max_calls=None if is_parallel else 1,
        thinks=thinks,
        is_open=is_open,
    )


def constrained(params: SamplingParams, form: AnswerForm) -> SamplingParams:
    """The parameters with a grammar of the whole answer, where calls are forced or content has a given shape.

    Raises InvalidRequestError.
    """
    content = params.structured_outputs
    if content is None and not form.is_forced:
        return params
    if content is not None and form.is_forced:
        raise InvalidRequestError(
            "an answer cannot be a call of a tool and have a given shape as well; set tool_choice none or auto",
            param="tool_choice",
        )
    if form.is_plain or (form.style is None and not form.is_open and content is not None and content.kind == "grammar"):
        return params  # a grammar of the request's own leaves no room for reasoning before
    grammar = answer_grammar(
        style=form.style,
        tools=form.tools,
        is_parallel=form.max_calls is None,
        thinks=form.thinks,
        is_open=form.is_open,
        content=content,
    )
    outputs = StructuredOutputs(grammar=grammar, param="tools" if content is None else content.name)
    return dataclasses.replace(params, structured_outputs=outputs)


def _style(chat: Chat, template: ChatTemplate, settings: Settings) -> str | None:
    """How the model writes calls; None if none are to be looked for."""
    if chat.choice.mode == "none":
        return None
    style = settings.tool_call_parser
    if style == "auto":
        style = detected_style(template.source) or "unknown"
    if chat.choice.is_forced:
        return STYLE_OF_OTHERS if style in ("none", "unknown") else style
    if style == "unknown":
        raise InvalidRequestError(
            "this model's chat template shows no known way to call tools; tool_choice required or a function's name "
            "works with any model, for auto start with --tool-call-parser and perhaps --chat-template",
            param="tools",
        )
    return None if style == "none" else style


def _ends_in_reasoning(chat: Chat, prompt: str) -> bool:
    if chat.continue_final_message:
        said = str(chat.messages[-1].get("content", ""))
        return said.rfind(OPENING) > said.rfind(CLOSING)
    return prompt.rstrip().endswith(OPENING)


def take_variables(fields: dict[str, Any]) -> dict[str, Any]:
    """chat_template_kwargs: plain values by name. A template itself is not a request's to bring."""
    if fields.get("chat_template") is not None:
        raise InvalidRequestError(
            "chat_template in a request is refused; start the server with --chat-template", param="chat_template"
        )
    fields.pop("chat_template", None)
    variables = fields.pop("chat_template_kwargs", None)
    variables = {} if variables is None else variables
    if not isinstance(variables, dict) or len(variables) > _MAX_VARIABLES:
        raise InvalidRequestError(
            f"chat_template_kwargs must be an object of at most {_MAX_VARIABLES} values", param="chat_template_kwargs"
        )
    for name, value in variables.items():
        at = f"chat_template_kwargs.{name[:64]}"
        if name in RESERVED_NAMES or not name.isidentifier():
            raise InvalidRequestError(f"{at} is not a variable that a request may set", param=at)
        if not isinstance(value, (str, int, float, bool, type(None))):
            raise InvalidRequestError(f"{at} must be a string, a number, true, false or null", param=at)
    effort = fields.pop("reasoning_effort", None)
    if effort is not None and not isinstance(effort, str):
        raise InvalidRequestError("reasoning_effort must be a string", param="reasoning_effort")
    return variables if effort is None else {"reasoning_effort": effort, **variables}  # few templates know it
