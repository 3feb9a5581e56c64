"""Conversations: chat templates, tools, reasoning and checks of answers, shared by the APIs that have them."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ....engine.language.chat.format_names import REASONING_FORMAT_NAMES, TOOL_FORMAT_NAMES
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ChatSettings(ServerSettings):
    """Formats of tool calls and of reasoning."""

    tool_call_parser: str = setting(
        "auto", choices=("auto", "none", *TOOL_FORMAT_NAMES), help="how tool calls look; auto: as in the chat template"
    )
    reasoning_parser: str = setting(
        "auto",
        choices=("auto", "none", *REASONING_FORMAT_NAMES),
        help="how reasoning looks; think: <think>…</think>; auto: as in the chat template",
    )


EXTENSION = Extension(
    package=__name__,
    settings=ChatSettings,
    paths=("/tokenize", "/detokenize", "/tokenizer_info"),
    router="routes:router",
    answer_check="answer_check:AnswerChecks",
)
