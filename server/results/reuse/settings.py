"""Settings of the reuse of answers."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ReuseSettings(ServerSettings):
    """Switch and limits."""

    reuse_answers: bool = setting(
        False, help="answer an equal greedy or seeded request of the same key with the earlier answer"
    )
    max_reused_answers: int = setting(1000, at_least=1, help="answers that --reuse-answers keeps")
    max_reused_bytes: int = setting(
        64 * 2**20, at_least=1, help="memory for the answers that --reuse-answers keeps; takes KiB, MiB, GiB"
    )
