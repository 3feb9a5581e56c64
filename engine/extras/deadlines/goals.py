"""Goals: the times to the first token and between tokens that a request or the server aims at."""

from collections.abc import Mapping
from typing import NamedTuple

from ...config import EngineConfig
from ...core.request import Request
from . import DeadlineSettings


class Goals(NamedTuple):
    """Goals of one request, in seconds; None: no goal."""

    ttft_s: float | None = None  # from arrival to the first token
    itl_s: float | None = None  # mean time between tokens: token i is due i * itl_s after the first

    def ttft_slack(self, request: Request) -> float | None:
        """Return the seconds by which the first token came early, negative if late; None without goal or token."""
        if self.ttft_s is None or request.first_token_time is None:
            return None
        return self.ttft_s - (request.first_token_time - request.arrival_time)

    def itl_slack(self, request: Request) -> float | None:
        """Return the seconds by which the last token came early, negative if late; None without goal or gap."""
        num_gaps = request.num_output_tokens - 1
        if self.itl_s is None or num_gaps < 1 or request.first_token_time is None or request.last_token_time is None:
            return None
        return num_gaps * self.itl_s - (request.last_token_time - request.first_token_time)


NO_GOALS = Goals()


class GoalTable:
    """Goals of requests: a request's own values, else the server's."""

    def __init__(self, config: EngineConfig) -> None:
        settings = config.section(DeadlineSettings)
        self._server: Mapping[str, float | None] = {"ttft_ms": settings.ttft_ms, "itl_ms": settings.itl_ms}

    def of(self, request: Request) -> Goals:
        """Return the goals of a request. Background requests have none."""
        if request.is_background:
            return NO_GOALS
        own = {"ttft_ms": request.params.ttft_ms, "itl_ms": request.params.itl_ms}
        values = (self._server[name] if value is None else value for name, value in own.items())
        return Goals(*(None if value is None else value / 1000 for value in values))
