"""PagePart: the viewers of one server's steps, and its comparison of policies."""

from typing import Any

from ...extension import Part
from .policy_comparison import PolicyComparison
from .step_broadcast import StepBroadcast


class PagePart(Part):
    """Part that is made when the first viewer comes."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self.steps = StepBroadcast()
        self.comparison = PolicyComparison()

    async def stop(self, *, has_crashed: bool = False) -> None:
        """Let all viewers go."""
        self.steps.end()
