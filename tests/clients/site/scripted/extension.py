"""Extension for agents: the model says what a script says, token by token, so that an agent's whole loop is shown.

`PUT /scripted` takes a Script; `GET /scripted` returns the steps that were said. A grammar with one sentence forces the
tokens: prompts, templates, schemas of tools, streams and parsers are the server's own.
"""

from dataclasses import dataclass

from splitfuse.engine.config.setting import setting
from splitfuse.server.extension import Extension
from splitfuse.server.server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ScriptedSettings(ServerSettings):
    """Settings of the extension."""

    scripted: bool = setting(False, help="answer by the script of PUT /scripted")


EXTENSION = Extension(
    package="scripted",
    settings=ScriptedSettings,
    is_used=lambda settings: settings.scripted,
    paths=("/scripted",),
    router="routes:router",
    part="part:ScriptedAnswers",
)
