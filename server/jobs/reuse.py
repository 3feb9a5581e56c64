"""Reuse: an earlier answer that a job may get without the engine."""

from collections.abc import Callable
from typing import Protocol

from ...engine.core.outputs import OutputDelta
from ...engine.serving.submitted_request import SubmittedRequest


class Reuse(Protocol):
    """Search for an earlier answer to one job, which has ended."""

    @property
    def earlier(self) -> SubmittedRequest | None:
        """Request of the earlier answer; None if the engine has to answer."""

    async def accepted(self, request: SubmittedRequest, sink: Callable[[OutputDelta], None]) -> None:
        """Deliver the earlier answer to `sink`. Without one, keep the answer to this request for later jobs."""
