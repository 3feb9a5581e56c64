"""ChatForm: how the model behind a chat template writes calls of tools and thoughts, derived by asking the template."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...errors import ConfigError, InvalidRequestError, SplitfuseError
from .answer_parser import AnswerParser
from .answer_parts import joined
from .call_formats import CALL_FORMATS, declared_format
from .call_syntax import CallSyntax
from .form_trials import TOOLS, USER, CallTrials, content_tags, thoughts_of
from .reasoning_parser import ReasoningFormat
from .shapes import Call
from .template import ChatTemplate

Tools = Sequence[Mapping[str, Any]]
_NESTED = {"list": [1, None, True, 'it\'s "so"'], "of": {"the": "<tag> {é"}}
READ_BACK: Sequence[tuple[str, dict[str, Any]]] = (
    ("mark_call_a", {"mark_key_a": 'say "so",\n\'it\' \\ is {"x": [1]} </tool_call> é'}),
    ("mark_call_a", {}),
    ("mark_call_a", {"mark_key_a": "", "mark_key_b": -1.5}),
    ("mark_name", {"mark_key_a": True, "mark_key_b": _NESTED}),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a model, come apart."""

    content: str
    reasoning: str
    calls: list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class ChatForm:
    """Form of calls and thoughts. `calls`, `reasoning`: None if the template shows none."""

    calls: CallSyntax | None = None
    reasoning: ReasoningFormat | None = None
    begins_open: bool = False  # the template's prompt ends within reasoning
    content_tags: tuple[str, str] = ("", "")  # before and after content
    _trials: CallTrials | None = field(default=None, repr=False, compare=False)

    @classmethod
    def derive(cls, template: str, bos_token: str = "", eos_token: str = "") -> "ChatForm":
        """Ask a template. Raises ConfigError with the reason if it renders nothing, or calls that cannot be read."""
        return cls.of(ChatTemplate(template, special_tokens={"bos_token": bos_token, "eos_token": eos_token}))

    @classmethod
    def of(cls, template: ChatTemplate) -> "ChatForm":
        """Ask a compiled template. Raises ConfigError like `derive`."""
        try:
            prompt = template.render([{"role": "user", "content": "MarkUser"}])
            reasoning = thoughts_of(template.render, template.source)
            begins_open = reasoning is not None and reasoning.ends_open(prompt)
            tags = content_tags(template.render, reasoning)
            if not template.shapes.shows_calls:
                return cls(None, reasoning, begins_open, tags)
            trials = CallTrials(template.render, is_parallel=not template.shapes.has_one_call, thoughts=reasoning)
            form = cls(trials.syntax(), reasoning, begins_open, tags, trials)
            form._check()
        except (SplitfuseError, ValueError, LookupError, RecursionError) as exc:  # a template may write anything
            raise ConfigError(f"the form of calls cannot be derived from the chat template: {exc}") from exc
        return form

    @property
    def has_calls(self) -> bool:
        """True if the template shows calls."""
        return self.calls is not None

    @property
    def has_parallel_calls(self) -> bool:
        """True if one answer may have several calls."""
        return self.calls is not None and self.calls.between is not None

    @property
    def has_reasoning(self) -> bool:
        """True if the template shows reasoning, or cuts it off."""
        return self.reasoning is not None

    def render_calls(self, calls: Sequence[Call], tools: Tools | None = None) -> str:
        """Return the calls as the template writes them in an answer. Raises InvalidRequestError."""
        if self._trials is None or (len(calls) > 1 and not self.has_parallel_calls):
            raise InvalidRequestError(f"the chat template shows no answer with {len(calls)} calls", param="calls")
        return self._trials.answer_text(calls, tools=tools)

    def read(self, text: str, tools: Tools | None = None) -> Answer:
        """Take an answer apart."""
        reader = self.reader(tools)
        reader.feed(text)
        return reader.end()

    def reader(self, tools: Tools | None = None) -> "FormReader":
        """Create a reader of one answer. `tools` say which values are strings, where calls do not show it."""
        return FormReader(self, tools or ())

    def _check(self) -> None:
        """Raise ConfigError unless calls of all kinds are read back as the template writes them."""
        assert self.calls is not None
        for calls in [*([call] for call in READ_BACK), *[list(READ_BACK[2:])] * self.has_parallel_calls]:
            text = self.render_calls(calls)
            if self.read(text).calls != calls:
                raise ConfigError(f"calls are not read back as they were: {text[:200]!r}")


def form_facts(template: ChatTemplate) -> dict[str, Any]:
    """Return what a template says of its answers, as JSON values.

    calls: the fields of a CallSyntax, or the name of the one that reads them; reasoning: the fields of a
    ReasoningFormat; content_tags: texts around content; hidden: what the template does not print, "tools", "calls" or
    both; error: the reason if no calls can be derived, nor found declared.
    """
    shapes = template.shapes
    facts: dict[str, Any] = {"hidden": ["tools"] * (not shapes.shows_tools) + ["calls"] * (not shapes.shows_calls)}
    try:
        form = ChatForm.of(template)
    except ConfigError as exc:
        reasoning = thoughts_of(template.render, template.source)
        form, facts["error"] = ChatForm(None, reasoning), str(exc)
    facts["calls"] = _calls(template, form)
    if facts["calls"] is not None:
        facts.pop("error", None)
    facts["content_tags"] = [tag for tag in form.content_tags if tag]
    return facts | {"reasoning": None if form.reasoning is None else asdict(form.reasoning)}


def _calls(template: ChatTemplate, form: ChatForm) -> dict[str, Any] | str | None:
    """Return the syntax of calls. What a prompt with tools declares says more than a bare object, or no call."""
    is_bare = form.calls is None or not form.calls.trigger
    if is_bare and template.shapes.shows_tools:
        declared = declared_format(template.render([USER], tools=TOOLS))
        if declared is not None:
            return declared
    if form.calls is None:
        return None
    return next((name for name in CALL_FORMATS if _reads(name, form)), None) or asdict(form.calls)


def _reads(name: str, form: ChatForm) -> bool:
    """True if the syntax of this name reads the calls that the template writes."""
    named = replace(form, calls=replace(CALL_FORMATS[name], others=()))
    return all(named.read(form.render_calls([call])) == Answer("", "", [call]) for call in READ_BACK)


class FormReader:
    """Incremental reader of one answer."""

    def __init__(self, form: ChatForm, tools: Tools) -> None:
        self._parser = AnswerParser(
            form.calls, form.reasoning, tools, is_open=form.begins_open, content_tags=form.content_tags
        )
        self.parts: list[Any] = []

    def feed(self, piece: str) -> None:
        """Read the next piece of the answer."""
        self.parts += self._parser.push(piece)

    def end(self) -> Answer:
        """Return the whole answer. A call that was cut is content."""
        parts = joined([*self.parts, *self._parser.finish()])
        content, thoughts = ("".join(p.text for p in parts if p.kind == kind) for kind in ("content", "reasoning"))
        arguments = {part.number: part.text for part in parts if part.kind == "arguments"}
        calls: list[tuple[str, dict[str, Any]]] = []
        for part in (part for part in parts if part.kind == "call"):
            try:
                calls.append((part.text, json.loads(arguments.get(part.number) or "{}")))
            except ValueError:
                content += self._parser.raw_call or arguments[part.number]
        return Answer(content, thoughts, calls)
