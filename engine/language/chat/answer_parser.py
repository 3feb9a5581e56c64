"""AnswerParser: split a model's answer into reasoning, content and tool calls, in the style of its chat template."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..text.stop_strings import overlap
from .answer_parts import AnswerPart, TagFilter
from .call_reader import CallsReader
from .call_syntax import CallSyntax, triggers_of
from .fenced_calls import Fits
from .harmony_parser import HarmonyParser
from .reasoning_parser import ReasoningFormat, ReasoningParser

_CUT_LETTERS = 2
_NO_REASONING = ReasoningFormat(openings=(), closings=())


class AnswerParser:
    """Reader of whole answers: reasoning first, then calls among the content. Either part may be missing.

    `is_open`: the prompt ends within reasoning. Calls beyond `max_calls` are dropped, and reasoning unless
    `shows_reasoning`. So are `content_tags`, and with `drops_cut` the beginning of a call or of a tag at the end.
    `is_forced`: an answer is a call. `fits`: see CallsReader.
    """

    def __init__(
        self,
        syntax: CallSyntax | None,
        reasoning: ReasoningFormat | None,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        is_open: bool = False,
        max_calls: int | None = None,
        shows_reasoning: bool = True,
        is_forced: bool = False,
        drops_cut: bool = False,
        content_tags: Sequence[str] = (),
        fits: Fits | None = None,
    ) -> None:
        is_open, reasoning = is_open and reasoning is not None, reasoning or _NO_REASONING
        has_channels = bool(reasoning.before_content) or (syntax is not None and syntax.arguments == "channels")
        new_calls = None if syntax is None else partial(CallsReader, syntax, tools, fits)
        self._calls = None if new_calls is None or has_channels else new_calls()
        self._thinking: ReasoningParser | HarmonyParser = HarmonyParser(reads_calls=syntax is not None)
        if not has_channels:
            triggers = () if syntax is None else triggers_of(syntax)
            self._thinking = ReasoningParser(reasoning, is_open=is_open, triggers=triggers, new_calls=new_calls)
        self._thinking_tags = [*reasoning.openings, *reasoning.closings] * (drops_cut and not has_channels)
        self._content = TagFilter(content_tags)
        self._max_calls = max_calls
        self._shows_reasoning = shows_reasoning
        self._is_forced = is_forced
        # Calls begin with a tag, so text is held back for nothing else.
        syntaxes = () if syntax is None or not syntax.trigger else (syntax, *syntax.others)
        self._call_tags = [other.trigger for other in syntaxes if drops_cut and other.trigger]

    @property
    def raw_call(self) -> str:
        """Text of the call that is being read."""
        return "" if self._calls is None else self._calls.raw

    @property
    def is_thinking(self) -> bool:
        """True while the answer is within its reasoning."""
        return self._thinking.is_thinking

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain now."""
        return self._content.without(self._after_thinking(self._thinking.push(text)))

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        return self._content.without(self._last_parts(), is_end=True)

    def _last_parts(self) -> list[AnswerPart]:
        thought = [_without_cut_tag(part, self._thinking_tags) for part in self._thinking.finish()]
        parts, held = self._after_thinking(thought), self._thinking.held
        if held and self._calls is not None:  # a call within reasoning that nothing closed, or more of the reasoning
            found = [*self._calls.push(held), *self._without_cut_call(self._calls.finish())]
            is_call = any(part.kind == "call" for part in found)
            return parts + self._allowed(found if is_call else [AnswerPart("reasoning", held)])
        return parts + self._allowed([] if self._calls is None else self._without_cut_call(self._calls.finish()))

    def _without_cut_call(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        """Drop the beginning of a call: the text that was held back to the end."""
        text = "".join(part.text for part in parts if part.kind == "content").strip()
        is_begun = any(text.startswith(tag) or tag.startswith(text) for tag in self._call_tags)
        is_cut = is_begun and len(text) >= _CUT_LETTERS
        return [part for part in parts if part.kind != "content"] if is_cut or self._is_forced else parts

    def _after_thinking(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        if self._calls is None:
            return self._allowed(parts)
        parsed_parts: list[AnswerPart] = []
        for part in parts:
            parsed_parts += self._calls.push(part.text) if part.kind == "content" else [part]
        return self._allowed(parsed_parts)

    def _allowed(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        if not self._shows_reasoning:
            parts = [part for part in parts if part.kind != "reasoning"]
        return [part for part in parts if part.text and (self._max_calls is None or part.number < self._max_calls)]


def _without_cut_tag(part: AnswerPart, tags: Sequence[str]) -> AnswerPart:
    """Drop the first letters of a tag, two or more, from the end of a text: one letter may be text."""
    length = max((overlap(part.text, tag) for tag in tags), default=0)
    if part.kind not in ("content", "reasoning") or length < _CUT_LETTERS:
        return part
    return part._replace(text=part.text[:-length].rstrip())
