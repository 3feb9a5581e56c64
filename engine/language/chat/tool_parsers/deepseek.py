"""DeepSeek's format of calls: the name, then the arguments, between tags. V3 and R1 put the arguments into a fence."""

import re

from ..answer_parts import Reader
from .tagged_calls import TaggedCalls
from .tool_format import ToolFormat, Tools

_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE = "```json"
_TAGS = (_SECTION, _SECTION_END, _CALL, _SEPARATOR, _CALL_END)
_HEAD = re.compile(rf"\s*(?:function{_SEPARATOR})?\s*([^\s<>{{}}`]+)(?:\s*{_FENCE}\s*|{_SEPARATOR}\s*)")


def _reader(tools: Tools) -> Reader:
    silent = (_SECTION, _SECTION_END, f"\n```{_CALL_END}", _CALL_END)
    return TaggedCalls(opening=_CALL, head=_HEAD, silent=silent)


V3_FORMAT = ToolFormat(
    before=_SECTION,
    around=lambda name: (f"{_CALL}function{_SEPARATOR}{name}\n{_FENCE}\n", f"\n```{_CALL_END}"),
    between="\n",
    after=_SECTION_END,
    trigger=_SECTION,
    special_texts=_TAGS,
    reader=_reader,
    matches=lambda template: _CALL in template and _FENCE in template,
)
V31_FORMAT = ToolFormat(
    before=_SECTION,
    around=lambda name: (f"{_CALL}{name}{_SEPARATOR}", _CALL_END),
    after=_SECTION_END,
    trigger=_SECTION,
    special_texts=_TAGS,
    reader=_reader,
    matches=lambda template: _CALL in template and _FENCE not in template,
)
