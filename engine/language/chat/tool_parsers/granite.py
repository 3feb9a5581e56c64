"""Granite 3's format of calls: <|tool_call|>[{"name": …, "arguments": {…}}, …]."""

from .hermes import HermesCalls
from .tool_format import ToolFormat, in_object

TAG = "<|tool_call|>"

FORMAT = ToolFormat(
    before=f"{TAG}[",
    around=in_object("arguments"),
    between=", ",
    after="]",
    trigger=TAG,
    special_texts=(TAG,),
    reader=lambda tools: HermesCalls(opening=TAG, closing=""),
    matches=lambda template: TAG in template,
)
