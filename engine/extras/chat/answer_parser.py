"""AnswerParser: split a model's answer into reasoning, content and tool calls, in the style of its chat template."""

from .answer_parts import AnswerPart, Reader
from .harmony_parser import HarmonyParser
from .reasoning_parser import ReasoningParser


class AnswerParser:
    """Reader of whole answers: reasoning first, then calls among the content. Either part may be missing.

    HarmonyParser reads both. Calls beyond `max_calls` are dropped, and reasoning unless `shows_reasoning`.
    """

    def __init__(
        self,
        thinking: ReasoningParser | HarmonyParser | None,
        calls: Reader | None,
        *,
        max_calls: int | None = None,
        shows_reasoning: bool = True,
    ) -> None:
        self._thinking = thinking
        self._calls = calls
        self._max_calls = max_calls
        self._shows_reasoning = shows_reasoning

    @property
    def is_thinking(self) -> bool:
        """True while the answer is within its reasoning."""
        return self._thinking is not None and self._thinking.is_thinking

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain now."""
        return self._after_thinking(
            [AnswerPart("content", text)] if self._thinking is None else self._thinking.push(text)
        )

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        parts = self._after_thinking([] if self._thinking is None else self._thinking.finish())
        return parts + self._allowed(self._calls.finish() if self._calls is not None else [])

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
        return parts if self._max_calls is None else [part for part in parts if part.number < self._max_calls]
