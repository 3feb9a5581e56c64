"""How an answer is taken apart into reasoning, calls of tools and content, and what has to be enforced of that."""

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...engine.chat.answer_parser import AnswerParser
from ...engine.chat.reasoning_parser import CLOSING, OPENING, ReasoningParser
from ...engine.chat.template import ChatTemplate
from ...engine.chat.tool_parsers.registry import DEFAULT_FORMAT, TOOL_FORMATS, detected_format
from ...engine.chat.tools import Tool
from ...engine.checks import check_text
from ...engine.errors import InvalidRequestError
from ...engine.sampling_params import SamplingParams
from ...engine.structured_output.answer_grammar import answer_grammar
from ...engine.structured_output.params import StructuredOutputs
from ..service import Service
from ..settings import Settings
from .chat_request import Chat

if TYPE_CHECKING:
    from ...engine.async_engine import AsyncEngine
    from ...engine.input_processor import Prompt


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
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

    def reader(self) -> AnswerParser:
        """A reader of one answer."""
        return AnswerParser(
            ReasoningParser(is_open=self.is_open) if self.thinks else None,
            None if self.style is None else TOOL_FORMATS[self.style].reader(self.tools),
            max_calls=self.max_calls,
        )


async def chat_prompt(service: Service, chat: Chat, *, name: str = "messages") -> tuple[str, AnswerFormat]:
    """The text of a conversation in the model's chat template, and the format of the answer.

    `name` is what the request calls the messages. Raises InvalidRequestError, QueueFullError, UnavailableError.
    """
    _ = service.tokenizer  # there is one
    return await model_prompt(service.engine, service.settings, chat, name=name)


async def model_prompt(
    engine: "AsyncEngine", settings: Settings, chat: Chat, *, name: str = "messages"
) -> tuple[str, AnswerFormat]:
    """The same of an engine that serves no requests yet."""
    if engine.tokenizer is None:
        raise InvalidRequestError("this model has no tokenizer")
    try:
        text = await chat.render(engine)
    except InvalidRequestError as exc:
        exc.param = name if exc.param == "messages" else exc.param
        raise
    check_text(text, param=name)
    return text, answer_format(chat, text, engine.tokenizer.chat_template, settings)


def rendered(text: str) -> "Prompt":
    """A chat's text as a prompt: the template has put the special tokens in."""
    return {"prompt": text, "add_special_tokens": False}


def answer_format(chat: Chat, prompt: str, template: ChatTemplate, settings: Settings) -> AnswerFormat:
    """What to expect of a model that has this template and reads this prompt. Raises InvalidRequestError."""
    does_think = thinks(template, settings)
    is_open = does_think and _ends_in_reasoning(chat, prompt)
    style = _style(chat, template, settings)
    is_parallel = chat.is_parallel and chat.choice.mode != "named"
    return AnswerFormat(
        style=style,
        tools=chat.choice.among(chat.tools),
        is_forced=chat.choice.is_forced,
        max_calls=None if is_parallel else 1,
        thinks=does_think,
        is_open=is_open,
    )


def thinks(template: ChatTemplate, settings: Settings) -> bool:
    """Whether reasoning is looked for in the answers of a model that has this template."""
    return OPENING in template.source if settings.reasoning_parser == "auto" else settings.reasoning_parser == "think"


def constrained(params: SamplingParams, answer: AnswerFormat) -> SamplingParams:
    """The parameters with a grammar of the whole answer, where calls are forced or content has to keep to a format.

    Raises InvalidRequestError.
    """
    content = params.structured_outputs
    if content is None and not answer.is_forced:
        return params
    if content is not None and answer.is_forced:
        raise InvalidRequestError(
            "an answer cannot be a call of a tool and keep to a format as well; set tool_choice none or auto",
            param="tool_choice",
        )
    if answer.is_plain or (
        answer.style is None and not answer.is_open and content is not None and content.kind == "grammar"
    ):
        return params  # a grammar of the request's own leaves no room for reasoning before
    grammar = answer_grammar(
        style=answer.style,
        tools=answer.tools,
        is_parallel=answer.max_calls is None,
        thinks=answer.thinks,
        is_open=answer.is_open,
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
        style = detected_format(template.source) or "unknown"
    if chat.choice.is_forced:
        return DEFAULT_FORMAT if style in ("none", "unknown") else style
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
