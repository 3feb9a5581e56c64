"""Reuse of answers: an equal greedy or seeded request gets the earlier answer, without computing."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ReuseSettings(ServerSettings):
    """Switch."""

    reuse_answers: bool = setting(
        False, help="answer an equal greedy or seeded request of the same key with the earlier answer"
    )


EXTENSION = Extension(
    package=__name__,
    settings=ReuseSettings,
    is_used=lambda settings: settings.reuse_answers,
    part="part:AnswerReuse",
)
