"""Settings of conversations."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ....engine.extension import has_extra, load_extra
from ...server_settings import ServerSettings

_HAS_CHAT = has_extra("chat")


def _formats(module: str, name: str) -> tuple[str, ...]:
    """Names in a registry of the engine's chat extra; none without the extra."""
    return tuple(getattr(load_extra(module, needed_for="chat"), name)) if _HAS_CHAT else ()


@dataclass(frozen=True, kw_only=True)
class ChatSettings(ServerSettings):
    """Formats of tool calls and of reasoning."""

    tool_call_parser: str = setting(
        "auto",
        choices=("auto", "none", *_formats("chat.format_names", "TOOL_FORMAT_NAMES")),
        help="how tool calls look; auto: as in the chat template",
    )
    reasoning_parser: str = setting(
        "auto",
        choices=("auto", "none", *_formats("chat.format_names", "REASONING_FORMAT_NAMES")),
        help="how reasoning looks; think: <think>…</think>; auto: as in the chat template",
    )
