"""Phi-4-mini's format of calls: functools[{"name": …, "arguments": {…}}, …]."""

from .hermes import HermesCalls
from .tool_format import ToolFormat, in_object

TAG = "functools["

FORMAT = ToolFormat(
    before=TAG,
    around=in_object("arguments"),
    between=", ",
    after="]",
    trigger=TAG,
    reader=lambda tools: HermesCalls(opening=TAG, closing=""),
    matches=lambda template: TAG in template,
)
