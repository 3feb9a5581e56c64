"""Deadlines: steps as short, and prompts as early, as the goals of requests ask for. Imports no torch."""

import math
from dataclasses import dataclass
from typing import Any

from ...config.engine_settings import EngineSettings
from ...config.setting import setting
from ...errors import ConfigError
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
    # Not in the repr, because it may contain keys.
    tenant_goals: dict[str, dict[str, float]] | None = setting(
        None,
        repr=False,
        by_tenant=True,
        help='goals per tenant, as JSON: {"USER or API key": {"ttft_ms": 500, "itl_ms": 50}}',
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for tenant, goals in (self.tenant_goals or {}).items():
            if not isinstance(goals, dict) or not _are_goals(goals):
                raise ConfigError(f"tenant_goals: {tenant!r} takes ttft_ms and itl_ms, numbers above 0, not {goals!r}")

    def values_for_streams(self, device: str) -> dict[str, Any]:
        values = {} if isinstance(self.target_itl_ms, float | int) else super().values_for_streams(device)
        return values | {"target_itl_ms": self.target_itl_ms or "auto"} if values else {}


def _are_goals(goals: dict[str, float]) -> bool:
    are_numbers = all(type(value) in (int, float) and 0 < value < math.inf for value in goals.values())
    return bool(goals) and goals.keys() <= {"ttft_ms", "itl_ms"} and are_numbers


EXTENSION = EngineExtension(package=__name__, settings=DeadlineSettings, part="pacer:Deadlines")
