"""ReasoningParser: text between two tags is reasoning, the rest is content. Also the tags that models use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from . import harmony_parser
from .answer_parts import AnswerPart, BufferedReader, cut_at_first
from .call_formats import Style
from .call_reader import CallsReader
from .call_syntax import tags_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """Tags around reasoning: one of `openings` and one of `closings`; a grammar uses the first closing.

    `is_open`: an answer begins within its reasoning. `before_content`: the opening of content, if content has one.
    """

    openings: tuple[str, ...]
    closings: tuple[str, ...]
    is_open: bool = False
    before_content: str = ""

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Parts of the tags that may be special tokens."""
        return tags_of(" ".join([*self.openings, *self.closings, self.before_content]))

    def is_open_at_end(self, text: str) -> bool:
        """True if reasoning that began in this text goes on after the text."""
        return max(map(text.rfind, self.openings)) > max(map(text.rfind, self.closings))

    def without_empty(self, text: str) -> str:
        """Return the text without empty reasoning at its beginning."""
        for closing in self.closings:
            before, found, after = text.partition(closing)
            if found and before.strip() in ("", *self.openings):
                return after.lstrip()
        return text

    def ends_open(self, prompt: str) -> bool:
        """True if an answer to this prompt begins within reasoning."""
        end = prompt.rstrip()
        return end.endswith(self.openings) or (self.is_open and not end.endswith(self.closings))


_THINK = ReasoningFormat(openings=("<think>",), closings=("</think>",))
# Formats under vLLM's names for its parsers.
REASONING_FORMATS = {
    "openai_gptoss": ReasoningFormat(
        openings=(f"{harmony_parser.CHANNEL}analysis{harmony_parser.MESSAGE}",),
        closings=(f"{harmony_parser.END}{harmony_parser.START}assistant",),
        before_content=f"{harmony_parser.CHANNEL}final{harmony_parser.MESSAGE}",
    ),
    "think": _THINK,
    "qwen3": _THINK,
    "deepseek_r1": replace(_THINK, is_open=True),
    "mistral": ReasoningFormat(openings=("[THINK]",), closings=("[/THINK]",)),
    "granite": ReasoningFormat(
        openings=("Here is my thought process:", "Here's my thought process:"),
        closings=("Here is my response:", "Here's my response:"),
    ),
}


def reasoning_format(style: Style) -> ReasoningFormat:
    """Return a format of reasoning by its name or from its fields."""
    if isinstance(style, str):
        return REASONING_FORMATS[style]
    fields = {name: style[name] for name in ("is_open", "before_content")}
    return ReasoningFormat(openings=tuple(style["openings"]), closings=tuple(style["closings"]), **fields)


class ReasoningParser(BufferedReader):
    """Reader of tagged reasoning. `is_open`: the template's prompt ended after an opening tag.

    An answer that does not begin with an opening tag has no reasoning, unless `is_open`. Whitespace next to the tags is
    dropped.
    """

    def __init__(
        self,
        form: ReasoningFormat,
        *,
        is_open: bool = False,
        triggers: Sequence[str] = (),
        new_calls: Callable[[], CallsReader] | None = None,
    ) -> None:
        """`triggers`: texts that begin calls; a call is one also if nothing closes the reasoning before it."""
        super().__init__(drops_leading_space=True)
        self.held = ""  # reasoning from the beginning of a call on: a call, unless the reasoning ends behind it
        self._triggers = triggers
        self._new_calls = new_calls
        self._call: CallsReader | None = None  # reader of the held text
        self.is_thinking = is_open
        self._openings = form.openings
        self._closings = form.closings
        self._has_begun = False
        self._skips_space = False  # True after the closing tag; an answer without reasoning is not stripped

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        if not self._has_begun:
            self._begin(is_end=is_end)
        if not self._has_begun:
            return []
        parts = self._reasoning(is_end=is_end) if self.is_thinking else []
        return parts if self.is_thinking else parts + self._content()

    def _begin(self, *, is_end: bool) -> None:
        """Decide whether the answer begins with an opening tag, which may follow one in the prompt."""
        stripped = self._text.lstrip()
        opening = next((tag for tag in self._openings if stripped.startswith(tag)), None)
        if opening is not None:
            self._text = stripped[len(opening) :]
            self._has_begun = self.is_thinking = True
        elif is_end or not any(tag.startswith(stripped) for tag in self._openings):
            self._has_begun = True

    def _reasoning(self, *, is_end: bool) -> list[AnswerPart]:
        if self.held:
            return self._behind_call(self._text, is_end=is_end)
        text, tag, self._text = cut_at_first(self._text, (*self._closings, *self._triggers), is_end=is_end)
        if tag is None:
            return self._part("reasoning", text)
        if tag in self._closings:
            return self._closed(text)
        assert self._new_calls is not None
        self._call = self._new_calls()
        return [*self._part("reasoning", text), *self._behind_call(tag + self._text, is_end=is_end)]

    def _behind_call(self, text: str, *, is_end: bool) -> list[AnswerPart]:
        """Hold text from a call on. A closing tag counts where no call is open, or if none of the calls ends."""
        assert self._call is not None
        while True:
            before, tag, self._text = cut_at_first(text, self._closings, is_end=is_end)
            self.held += before
            self._call.push(before)
            if tag is None:
                break
            if not self._call.is_inside:
                return self._closed(self.held)
            text = self._text
            self.held += tag
            self._call.push(tag)
        if is_end:
            self._call.finish()
            before, tag, rest = cut_at_first(self.held, self._closings, is_end=True)
            if self._call.is_inside and tag is not None:
                self._text = rest
                return self._closed(before)
        return []

    def _closed(self, text: str) -> list[AnswerPart]:
        self.held, self.is_thinking, self._skips_space = "", False, True
        return self._part("reasoning", text)

    def _content(self) -> list[AnswerPart]:
        text, self._text = self._text, ""
        if self._skips_space:
            text = text.lstrip()
            self._skips_space = not text
        return [AnswerPart("content", text)] if text else []
