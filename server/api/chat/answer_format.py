"""Format of an answer: how to split it into reasoning, tool calls and content, and which of them a grammar enforces."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from ....engine.checks import check_text
from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ....engine.language.chat.answer_parser import AnswerParser
from ....engine.language.chat.call_formats import NEUTRAL_FORMAT, Style, call_syntax
from ....engine.language.chat.call_syntax import tags_of
from ....engine.language.chat.reasoning_parser import ReasoningFormat, reasoning_format
from ....engine.language.chat.tools import Tool
from ....engine.language.structured_output.answer_grammar import answer_grammar
from ....engine.language.structured_output.argument_check import ArgumentCheck
from ....engine.language.structured_output.params import StructuredOutputs
from ...server_settings import ServerSettings
from ...service import Service
from . import ChatSettings
from .chat_request import Chat
from .custom_calls import CustomCalls

if TYPE_CHECKING:
    from ....engine.language.text.tokenizer import Tokenizer
    from ....engine.serving.async_engine import AsyncEngine
    from ....engine.serving.input_processor import Prompt


# Tokens of reasoning by level, for templates that do not read it; higher levels have no limit.
LEVELS: Mapping[str, int] = {"none": 0, "minimal": 128, "low": 512, "medium": 2048, "high": -1, "xhigh": -1, "max": -1}


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """Rules for splitting one answer into reasoning, tool calls and content."""

    style: Style | None = None  # tool format to look for; None: no calls
    tools: list[Tool] = field(default_factory=list)  # tools that may be called
    is_forced: bool = False  # the answer must be a call
    checked_names: list[str] = field(default_factory=list)  # their arguments are checked even if no call is forced
    max_calls: int | None = None
    reasoning: Style | None = None  # reasoning format to look for
    is_open: bool = False  # the prompt ends inside the reasoning
    shows_reasoning: bool = True
    customs: list[str] = field(default_factory=list)  # names of custom tools
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)  # of functions, by the model's name
    special_ids: dict[str, int] = field(default_factory=dict)  # special tokens among the texts of both formats
    thinking_budget: int | None = None  # of the level of reasoning, unless the template reads levels
    in_words: list[str] = field(default_factory=list)  # tools, calls: those that the template does not print
    content_tags: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> "AnswerFormat":
        """Read a stored dict. Older files have `thinks` instead: there may be reasoning in <think> tags."""
        fields = dict(kept)
        if fields.pop("thinks", False):
            fields["reasoning"] = "think"
        return cls(**fields)

    @property
    def is_plain(self) -> bool:
        """True if an answer is content and nothing else."""
        return self.style is None and self.reasoning is None and not self.content_tags

    def reader(self) -> AnswerParser:
        """Create a parser for one answer."""
        parser = AnswerParser(
            None if self.style is None else call_syntax(self.style),
            None if self.reasoning is None else reasoning_format(self.reasoning),
            self.tools,
            is_open=self.is_open,
            max_calls=self.max_calls,
            shows_reasoning=self.shows_reasoning,
            is_forced=self.is_forced,
            drops_cut=True,
            content_tags=self.content_tags,
            fits=ArgumentCheck(self.tools, self.checked_names),
        )
        return CustomCalls(parser, self.customs) if self.customs else parser


async def chat_prompt(service: Service, chat: Chat) -> tuple[str, AnswerFormat]:
    """Render a conversation in the model's chat template. Returns the text and the format of the answer.

    Raises InvalidRequestError, QueueFullError, UnavailableError.
    """
    _ = service.tokenizer  # raises if the model has no tokenizer
    if not service.engine.generates:
        raise InvalidRequestError("this model generates no text; POST /v1/embeddings, /score or /classify")
    return await model_prompt(service.engine, service.settings, chat, name="messages")


async def model_prompt(
    engine: "AsyncEngine", settings: ServerSettings, chat: Chat, *, name: str
) -> tuple[str, AnswerFormat]:
    """Like `chat_prompt`, for an engine that may not serve requests yet.

    `name` is the request's field with the messages.
    """
    if engine.tokenizer is None:
        raise InvalidRequestError("this model has no tokenizer")
    tokenizer = engine.tokenizer
    form = await engine.prompts.chat_form()
    # Decided without looking at the request's tools: earlier messages may contain calls.
    own = _style_of(settings, form)
    if own is None and "error" in form and chat.choice.among(chat.tools):
        reason = f"tools: {form['error']}; a server with --tool-call-parser NAME reads calls in a format of that name"
        raise InvalidRequestError(reason, param="tools")
    try:
        text = await chat.render(engine, describes_tools=own is None)
    except InvalidRequestError as exc:
        exc.param = name if exc.param == "messages" else exc.param
        raise
    check_text(text, param=name)
    return text, answer_format(chat, text, tokenizer, settings, form)


def rendered(text: str) -> "Prompt":
    """Wrap a rendered chat as a prompt without further special tokens: the template has already put them in."""
    return {"prompt": text, "add_special_tokens": False}


def answer_format(
    chat: Chat, prompt: str, tokenizer: "Tokenizer", settings: ServerSettings, asked: Mapping[str, Any]
) -> AnswerFormat:
    """Return the format to expect of a model with this tokenizer after this prompt. `asked`: of form_facts."""
    own = _style_of(settings, asked)
    style = _style(chat, own)
    reasoning = reasoning_style(settings, asked)
    form = None if reasoning is None else reasoning_format(reasoning)
    special_texts = [] if style is None else [*call_syntax(style).special_texts]
    special_texts += [] if form is None else form.special_texts
    tags = [] if style is None and form is None else asked.get("content_tags", [])
    special_texts += tags_of(" ".join(tags))
    is_parallel = chat.is_parallel and chat.choice.mode != "named"
    tools = chat.choice.among(chat.tools)
    present = {"tools": bool(tools), "calls": any("tool_calls" in message for message in chat.messages)}
    hidden = present if own is None else asked.get("hidden", ())
    return AnswerFormat(
        style=style,
        tools=tools,
        is_forced=chat.choice.is_forced,
        checked_names=_checked_names(chat, style, is_told=own is None),
        max_calls=None if is_parallel else 1,
        reasoning=reasoning,
        is_open=form is not None and _ends_in_reasoning(chat, prompt, form),
        shows_reasoning=chat.shows_reasoning,
        customs=list(chat.customs),
        namespaces=dict(chat.namespaces),
        special_ids=tokenizer.special_ids(special_texts) if special_texts else {},
        thinking_budget=_level_budget(chat.effort, tokenizer.chat_template.source),
        in_words=[name for name in hidden if present[name]],
        content_tags=tags,
    )


def _level_budget(effort: str | None, source: str) -> int | None:
    """Return the tokens of reasoning at a level. A template that reads levels has its own, except for "none"."""
    return None if effort != "none" and "reasoning_effort" in source else LEVELS.get(effort or "")


def reasoning_style(settings: ServerSettings, asked: Mapping[str, Any]) -> Style | None:
    """Return the reasoning format to look for in answers of a model whose template says this of its answers."""
    named = settings.section(ChatSettings).reasoning_parser
    style: Style | None = asked.get("reasoning") if named == "auto" else named
    return None if style == "none" else style


def constrained(params: SamplingParams, answer: AnswerFormat) -> SamplingParams:
    """Add the grammar that the format needs: for forced or checked calls, or for content in a format.

    Raises InvalidRequestError.
    """
    if answer.special_ids:  # special tokens separate the parts of the answer
        params = dataclasses.replace(params, skip_special_tokens=False)
    if answer.reasoning is not None:
        form = dataclasses.replace(reasoning_format(answer.reasoning), is_open=answer.is_open)
        budget = answer.thinking_budget if params.thinking_budget is None else params.thinking_budget
        params = dataclasses.replace(params, reasoning_format=form, thinking_budget=budget)
    content = params.structured_outputs
    if content is not None and answer.is_forced:
        reason = "an answer cannot be a call of a tool and keep to a format as well; set tool_choice none or auto"
        raise InvalidRequestError(reason, param="tool_choice")
    is_free = content is None and not answer.is_forced
    if answer.is_plain or (is_free and not answer.checked_names):
        return params
    if answer.style is None and not answer.is_open and content is not None and content.kind == "grammar":
        return params  # a request's own grammar leaves no space for reasoning before it
    names = {tool["function"]["name"] for tool in answer.tools}
    try:
        grammar = answer_grammar(
            style=answer.style,
            tools=answer.tools,
            is_parallel=answer.max_calls is None,
            is_free=is_free,
            unchecked=names.difference(answer.checked_names) if is_free else (),
            reasoning=answer.reasoning,
            is_open=answer.is_open,
            content=content,
            content_tags=answer.content_tags,
            special_ids=answer.special_ids,
        )
        name = "tools" if content is None else content.name
        outputs = StructuredOutputs(grammar=grammar, param=name, is_optional=is_free)
    except InvalidRequestError:
        if is_free:  # the model's own calls are checked where a grammar can be built
            return params
        raise
    return dataclasses.replace(params, structured_outputs=outputs)


def _style_of(settings: ServerSettings, asked: Mapping[str, Any]) -> Style | None:
    """Return the model's tool format, "none" to leave calls in the text, None if neither settings nor template say."""
    named = settings.section(ChatSettings).tool_call_parser
    return asked.get("calls") if named == "auto" else named


def _style(chat: Chat, own: Style | None) -> Style | None:
    """Return the tool format to look for in this answer, None if calls are not looked for."""
    if chat.choice.mode == "none" or (own == "none" and not chat.choice.is_forced):
        return None
    return NEUTRAL_FORMAT if own is None or own == "none" else own


def _checked_names(chat: Chat, style: Style | None, *, is_told: bool) -> list[str]:
    """Return the tools whose arguments a grammar checks when the model calls them by itself.

    These are all tools if the prompt describes the format, which the model may then know badly, else the strict ones.
    """
    if style is None or chat.choice.is_forced or not call_syntax(style).trigger:
        return []
    names = [tool["function"]["name"] for tool in chat.choice.among(chat.tools)]
    return [name for name in names if is_told or name in chat.strict_names]


def _ends_in_reasoning(chat: Chat, prompt: str, form: ReasoningFormat) -> bool:
    if chat.continue_final_message:
        return form.is_open_at_end(str(chat.messages[-1].get("content", "")))
    return form.ends_open(prompt)


def tool_input(text: str) -> dict[str, Any]:
    """Parse a call's arguments, for APIs that do not send text. Cut text gives its complete part, other text {}."""
    try:
        value = from_json(text, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
