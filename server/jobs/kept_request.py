"""KeptRequest: what an API keeps of a request that outlives the process, and KeptKind: how it goes on from that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...engine.core.sampling_params import SamplingParams
from .job import Attachment

if TYPE_CHECKING:
    from ...engine.serving.async_engine import AsyncEngine
    from ...engine.serving.input_processor import Prompt


@dataclass(frozen=True, kw_only=True)
class KeptRequest:
    """What an API keeps of a request, so that another process can go on with it and answer as it would have."""

    kind: str  # which API
    body: Mapping[str, Any]  # as it came
    attachment: Any = None  # of the job, as JSON
    webhook: str | None = None  # the name of the target that is told of the end


class KeptKind(Protocol):
    """How an API makes of what it kept what it had."""

    def attachment(self, stored: Any) -> Attachment | None:
        """The job's attachment."""

    def params(self, body: Mapping[str, Any], attachment: Attachment | None) -> SamplingParams:
        """The sampling parameters. Raises InvalidRequestError where this version does not take the body."""

    async def renewed(self, engine: "AsyncEngine", settings: Any, kept: KeptRequest) -> "tuple[Prompt, KeptRequest]":
        """The prompt for another model than the one that it came for, and what to keep of it. Raises as `params`."""
