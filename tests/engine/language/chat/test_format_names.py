"""Names of formats, which settings offer without importing the formats."""

from splitfuse.engine.language.chat.call_formats import CALL_FORMATS
from splitfuse.engine.language.chat.format_names import REASONING_FORMAT_NAMES, TOOL_FORMAT_NAMES
from splitfuse.engine.language.chat.reasoning_parser import REASONING_FORMATS


def test_the_names_are_those_of_the_registries() -> None:
    assert tuple(CALL_FORMATS) == TOOL_FORMAT_NAMES
    assert tuple(REASONING_FORMATS) == REASONING_FORMAT_NAMES
