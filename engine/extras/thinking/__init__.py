"""Thinking with an end: an answer's reasoning is closed after a number of tokens, or on request."""

from dataclasses import dataclass

from ...config.engine_settings import EngineSettings
from ...config.setting import setting
from ...extension import EngineExtension


@dataclass(frozen=True, kw_only=True)
class ThinkingSettings(EngineSettings):
    """Limits of reasoning."""

    thinking_budget: int | None = setting(
        None, at_least=0, help="most tokens of reasoning in an answer, for requests that name no thinking_budget"
    )
    thinking_message: str = setting(
        "", help='text before a closing that a budget forces, such as "\\n\\nThat is enough; now the answer.\\n"'
    )


EXTENSION = EngineExtension(package=__name__, settings=ThinkingSettings, part="part:Thinking")
