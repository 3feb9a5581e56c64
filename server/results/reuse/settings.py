"""Setting of the reuse of answers."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ReuseSettings(ServerSettings):
    """Switch."""

    reuse_answers: bool = setting(
        False, help="answer an equal greedy or seeded request of the same key with the earlier answer"
    )
