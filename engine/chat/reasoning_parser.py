"""ReasoningParser: a model's text between <think> and </think> is reasoning, the rest content."""

from .answer_parts import AnswerPart, BufferedReader, cut_at

OPENING, CLOSING = "<think>", "</think>"


class ReasoningParser(BufferedReader):
    """A Reader. `is_open`: the prompt ended within the tags, as some templates do, so the answer begins there.

    An answer that does not begin with the opening tag has no reasoning. Whitespace beside the tags is dropped.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        super().__init__(drops_leading_space=True)
        self.is_thinking = is_open
        self._has_begun = False
        self._skips_space = False  # after the closing tag; an answer without reasoning stays as it is

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        if not self._has_begun:
            self._begin(is_end=is_end)
        if not self._has_begun:
            return []
        parts = self._reasoning(is_end=is_end) if self.is_thinking else []
        return parts if self.is_thinking else parts + self._content()

    def _begin(self, *, is_end: bool) -> None:
        """Find out whether the answer begins with the tag; an open one may come once more."""
        stripped = self._text.lstrip()
        if stripped.startswith(OPENING):
            self._text = stripped[len(OPENING) :]
            self._has_begun = self.is_thinking = True
        elif is_end or not OPENING.startswith(stripped):
            self._has_begun = True

    def _reasoning(self, *, is_end: bool) -> list[AnswerPart]:
        text, found, self._text = cut_at(self._text, CLOSING, is_end=is_end)
        if found:
            self.is_thinking = False
            self._skips_space = True
        return self._part("reasoning", text)

    def _content(self) -> list[AnswerPart]:
        text, self._text = self._text, ""
        if self._skips_space:
            text = text.lstrip()
            self._skips_space = not text
        return [AnswerPart("content", text)] if text else []
