"""CallsReader: calls of any CallSyntax among the text of an answer, while the text streams in."""

from collections.abc import Mapping, Sequence
from typing import Any

from .answer_parts import AnswerPart, BufferedReader, cut_at_first
from .call_arguments import Arguments, JsonArguments, Values
from .call_syntax import CallSyntax, Pattern, heads, is_tag
from .fenced_calls import FENCE, Fits, fenced_calls
from .json_call import CallReader
from .loose_values import schema_of

Tools = Sequence[Mapping[str, Any]]
_Head = tuple[Pattern, CallSyntax]
_MORE = [Pattern(separator) for separator in ("", ",", ";")]  # between objects in one pair of tags


class CallsReader(BufferedReader):
    """Reader of calls. What is no call stays text. Calls without a tag stand at the beginning, and name known tools.

    Objects in fences are calls, too, if they are whole, name known tools and `fits` takes their arguments.
    """

    def __init__(self, syntax: CallSyntax, tools: Tools, fits: Fits | None = None) -> None:
        super().__init__()
        self._syntax = syntax
        self._tools = tools
        self._names = frozenset(tool["function"]["name"] for tool in tools)
        first = [(pattern, other) for other in (syntax, *syntax.others) for pattern in heads(other)[0]]
        self._tagged = [head for head in first if is_tag(head[0].first)]
        self._bare = [head for head in first if not is_tag(head[0].first)]
        self._fits: Fits = lambda name, text: name in self._names and (fits is None or fits(name, text))
        self._keys = (syntax.name_key, syntax.arguments_key)  # keys of objects in fences
        fences = [FENCE] * bool(tools and syntax.name_key)
        self._tags = list(dict.fromkeys([*(pattern.first for pattern, _ in self._tagged), *fences]))
        self._step = self._at_start if self._bare else self._outside
        self._call = CallReader(0)
        self._arguments: Arguments = JsonArguments(is_text=False)
        self._held: list[AnswerPart] = []  # parts that may be no call: without a tag, until the first argument is whole
        self._num_calls = 0
        self.raw = ""  # text of the call that is being read

    @property
    def is_inside(self) -> bool:
        """True within a call."""
        return self._step in (self._in_object, self._in_arguments, self._in_fence)

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        parts = super().finish()
        if self._held or (self._step == self._in_object and not self._call.is_call):
            parts += self._part("content", self.raw + self._text)
        return [*parts, *self._last_space()]

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        while (self._text or self._step in (self._behind, self._in_fence)) and self._step(parts, is_end=is_end):
            pass
        return parts

    # These methods return True if there may be more to read, and append the certain parts to `parts`.

    def _at_start(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        if not self._text.strip() and not is_end:
            return False
        begun = self._begin(self._bare, parts, is_end=is_end)
        if begun is False:
            self._step = self._outside
        return begun is not None

    def _outside(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        text, tag, rest = cut_at_first(self._text, self._tags, is_end=is_end)
        parts += self._part("content", text)
        self._text = (tag or "") + rest
        if tag is None:
            return False
        if tag == FENCE:
            self._text, self._step = rest, self._in_fence
            return True
        begun = self._begin(self._tagged, parts, is_end=is_end)
        if begun is False:
            parts += self._part("content", self._text[0])
            self._text = self._text[1:]
        return begun is not None

    def _begin(self, heads: Sequence[_Head], parts: list[AnswerPart], *, is_end: bool) -> bool | None:
        """Begin a call if one stands here; None if more text decides."""
        has_more = False
        for pattern, syntax in heads:
            end, name = pattern.match(self._text, is_end=is_end)
            if end is None:
                has_more = True
            elif end >= 0:
                begun = self._begin_at(end, name, syntax, parts, is_end=is_end)
                if begun:
                    return True
                has_more = has_more or begun is None
        return None if has_more else False

    def _begin_at(
        self, end: int, name: str, syntax: CallSyntax, parts: list[AnswerPart], *, is_end: bool
    ) -> bool | None:
        rest = self._text[end:].lstrip()
        if syntax.name_key:
            if not rest.startswith("{"):
                return None if not rest and not is_end else False
            names = self._names if self._bare and self._names else None
            keys = (syntax.name_key, syntax.arguments_key)
            self._call = CallReader(self._num_calls, names=names, keys=keys)
            self._step = self._in_object
        else:
            arguments: Arguments = JsonArguments(is_text=syntax.is_text)
            if syntax.arguments != "json":
                arguments = Values(syntax, schema_of(self._tools, name), is_strict=bool(self._bare))
            begins = arguments.begins(rest, is_end=is_end)
            if not begins:
                return begins
            if self._bare and self._names and name not in self._names:
                return False
            self._held = [AnswerPart("call", name, self._num_calls)]
            self._arguments, self._step = arguments, self._in_arguments
        self._syntax = syntax
        self.raw = self._text[: len(self._text) - len(rest)]
        self._text = rest
        return True

    def _in_object(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        new, rest = self._call.read(self._text)
        self.raw += self._text[: len(self._text) - len(rest)]
        self._text = rest
        if new:
            self._drop_space()
            parts += new
        if not self._call.is_over:
            return False
        return self._ended(parts, is_call=self._call.is_call)

    def _in_fence(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        found = fenced_calls(self._text, self._num_calls, keys=self._keys, fits=self._fits, is_end=is_end)
        if found is None:
            return False
        calls, end = found
        self._step, self._text = self._outside, self._text[end:]
        if calls:
            self._drop_space()
            self._num_calls = calls[-1].number + 1
        parts += calls or self._part("content", FENCE)
        return True

    def _in_arguments(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        text, rest = self._arguments.read(self._text, is_end=is_end)
        self.raw += self._text[: len(self._text) - len(rest)]
        self._text = rest
        self._held += [AnswerPart("arguments", text, self._num_calls)] if text else []
        if self._arguments.is_certain:
            if self._held:
                self._drop_space()
            parts += self._held
            self._held = []
        if not self._arguments.is_over:
            return False
        return self._ended(parts, is_call=not self._held)

    def _ended(self, parts: list[AnswerPart], *, is_call: bool) -> bool:
        """Go on after a call, or text that was none."""
        self._held = []
        if is_call:
            self._num_calls += 1
            self._step = self._behind
        else:
            parts += self._part("content", self.raw)
            self._step = self._outside
        return True

    def _behind(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        """Read the end of a call, what stands between it and the next one, or the end of all."""
        closing = self._syntax.closing.strip()
        if self._syntax.arguments == "keywords":
            closing = closing[1:]
        text = self._without(self._text, Pattern(closing).words, is_end=is_end)
        if text is None:
            return False
        patterns = [*heads(self._syntax)[1], *(_MORE if self._syntax.name_key and text == self._text else ())]
        whole, self._text = self._text, text
        later = [(pattern, self._syntax) for pattern in patterns]
        begun = self._begin(later, parts, is_end=is_end) if text.strip() or is_end else None
        if begun:
            return True
        ends = Pattern(f"{self._syntax.after} {self._syntax.trailer}").words
        text = None if begun is None else self._without(text, ends, is_end=is_end)
        if text is None:
            self._text = whole
            return False
        self._text, self._step = text, self._outside
        self.raw = ""
        self._drop_space()
        return True

    def _without(self, text: str, words: Sequence[str], *, is_end: bool) -> str | None:
        """Return the text after these words, any of which may be missing or cut; None if more text decides."""
        for word in words:
            stripped = text.lstrip()
            is_cut = word.startswith(stripped) and word != stripped
            if is_cut and not is_end:
                return None
            if is_cut or stripped.startswith(word):
                text = stripped[len(word) :]
        return text
