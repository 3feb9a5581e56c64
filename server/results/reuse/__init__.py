"""Reuse of answers: an equal greedy or seeded request gets the earlier answer, without computing."""

from ...extension import Extension
from .settings import ReuseSettings

EXTENSION = Extension(
    package=__name__,
    settings=ReuseSettings,
    is_used=lambda settings: settings.reuse_answers,
    part="part:AnswerReuse",
)
