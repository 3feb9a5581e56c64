"""Conversations: chat templates, tools, reasoning and checks of answers, shared by the APIs that have them."""

from ...extension import Extension
from .settings import ChatSettings

EXTENSION = Extension(
    package=__name__,
    settings=ChatSettings,
    paths=("/tokenize", "/detokenize"),
    router="routes:router",
    answer_check="answer_check:AnswerChecks",
)
