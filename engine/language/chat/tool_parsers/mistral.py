"""Mistral's formats of calls: [TOOL_CALLS][{"name": …, "arguments": {…}}, …]; newer: [TOOL_CALLS]name[ARGS]{…}."""

import re
from collections.abc import Iterable

from ..answer_parts import AnswerPart
from .hermes import HermesCalls
from .tagged_calls import TaggedCalls
from .tool_format import ToolFormat, in_object

TAG, ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
_HEAD = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*")


class MistralCalls:
    """Reader of both formats: text after the tag that is no list is read again for names."""

    def __init__(self) -> None:
        self._lists = HermesCalls(opening=TAG, closing="")
        self._named = TaggedCalls(opening=TAG, head=_HEAD)
        self._num_calls = 0

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain now."""
        return self._numbered(self._reread(self._lists.push(text)))

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        return self._numbered([*self._reread(self._lists.finish()), *self._named.finish()])

    def _reread(self, parts: Iterable[AnswerPart]) -> list[AnswerPart]:
        result: list[AnswerPart] = []
        for part in parts:
            result += self._named.push(part.text) if part.kind == "content" else [part]
        return result

    def _numbered(self, parts: Iterable[AnswerPart]) -> list[AnswerPart]:
        """Number the calls of both readers in one sequence."""
        result: list[AnswerPart] = []
        for part in parts:
            self._num_calls += part.kind == "call"
            is_content = part.kind == "content"
            result.append(part if is_content else part._replace(number=self._num_calls - 1))
        return result


LIST_FORMAT = ToolFormat(
    before=f"{TAG}[",
    around=in_object("arguments"),
    between=", ",
    after="]",
    trigger=TAG,
    special_texts=(TAG,),
    reader=lambda tools: MistralCalls(),
    matches=lambda template: TAG in template and ARGUMENTS not in template,
)
NAMED_FORMAT = ToolFormat(
    around=lambda name: (f"{TAG}{name}{ARGUMENTS}", ""),
    trigger=TAG,
    special_texts=(TAG, ARGUMENTS),
    reader=lambda tools: MistralCalls(),
    matches=lambda template: TAG in template and ARGUMENTS in template,
)
