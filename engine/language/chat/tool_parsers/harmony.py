"""Format of calls of gpt-oss: messages to functions."""

from ..harmony_parser import CALL, CHANNEL, CONSTRAIN, MESSAGE, HarmonyParser
from .tool_format import ToolFormat

FORMAT = ToolFormat(
    around=lambda name: (f"{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}", ""),
    between=None,
    special_texts=(CHANNEL, CONSTRAIN, MESSAGE),
    reader=lambda tools: HarmonyParser(),
    matches=lambda template: CHANNEL in template and CALL in template,
)
