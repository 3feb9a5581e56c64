"""SavedRequest: data of a request that outlives the process. SavedKind: its API, which takes it up again."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ...engine.core.sampling_params import SamplingParams
from .job import Attachment

if TYPE_CHECKING:
    from ...engine.serving.async_engine import AsyncEngine
    from ...engine.serving.input_processor import Prompt


@dataclass(frozen=True, kw_only=True)
class SavedRequest:
    """Data that an API keeps of a request, from which another process can go on and give the same answer."""

    kind: str  # name of the API
    body: Mapping[str, Any]  # body as it arrived
    attachment: Any = None  # the job's attachment, as JSON
    defaults: Mapping[str, Any] = field(default_factory=dict)  # values of sampling fields that the body lacks


def params_of(
    kinds: Mapping[str, "SavedKind"], request: Mapping[str, Any], attachment: Attachment | None
) -> SamplingParams:
    """Rebuild the sampling parameters of a kept request. Raises like SavedKind.params."""
    defaults = request.get("defaults", {})  # a version without them sampled neutrally
    params = kinds[request["kind"]].params(request["body"], attachment, defaults)
    return replace(params, adapter=adapter_of(request), **request.get("amended", {}))


def adapter_of(request: Mapping[str, Any]) -> str | None:
    """Return the name of the adapter that a kept request began with, whose hash is in the fingerprint."""
    name: str | None = request["body"].get("lora_path") or request["body"].get("model")
    return name if "+" in (request.get("fingerprint") or "") else None


class SavedKind(Protocol):
    """Way of an API to rebuild a request from its kept data."""

    def attachment(self, stored: Any) -> Attachment | None:
        """Return the job's attachment."""

    def params(
        self, body: Mapping[str, Any], attachment: Attachment | None, defaults: Mapping[str, Any]
    ) -> SamplingParams:
        """Return the sampling parameters. Raises InvalidRequestError where this version does not take the body."""

    async def renewed(self, engine: "AsyncEngine", settings: Any, kept: SavedRequest) -> "tuple[Prompt, SavedRequest]":
        """Return the prompt for another model than the first, and the data to keep then. Raises like `params`."""
