"""Deadlines: steps as short, and prompts as early, as the goals of requests ask for. Imports no torch."""

from dataclasses import dataclass
from typing import Any

from ...config.engine_settings import EngineSettings
from ...config.setting import setting
from ...extension import EngineExtension


@dataclass(frozen=True, kw_only=True)
class DeadlineSettings(EngineSettings):
    """Goals of latency."""

    target_itl_ms: float | str | None = setting(
        None,
        above=0,
        words=("auto", "off"),
        help="longest gap between tokens to aim at, in ms; auto: five steps of the streams alone; "
        "nothing = auto for streams",
    )
    ttft_ms: float | None = setting(None, above=0, help="goal of requests without one: ms until the first token")
    itl_ms: float | None = setting(None, above=0, help="goal of requests without one: mean ms between tokens")

    def values_for_streams(self, device: str) -> dict[str, Any]:
        values = {} if isinstance(self.target_itl_ms, float | int) else super().values_for_streams(device)
        return values | {"target_itl_ms": self.target_itl_ms or "auto"} if values else {}


EXTENSION = EngineExtension(package=__name__, settings=DeadlineSettings, part="pacer:Deadlines")
