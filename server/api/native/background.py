"""POST /generate without its route: lines of batches, and requests that another process continues."""

from collections.abc import Callable, Mapping
from typing import Any

from ....engine.core.sampling_params import SamplingParams
from ...jobs.job import Attachment
from ...jobs.saved_request import SavedRequest
from ...service import Service
from ..request_model import read_fields
from .request import KIND, GenerateRequest
from .response import result_object

__all__ = ["KIND", "SavedGenerate", "generate_batched"]


async def generate_batched(
    service: Service, fields: Mapping[str, Any], *, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer like POST /generate, in the background and without keeping the result. Raises like the route."""
    body = read_fields(service, fields, GenerateRequest, defaults=defaults)
    params = body.sampling()
    check = await service.check_of(params)
    job = service.new_job(params, owner=owner, check=check, keeps_prompt=body.return_token_ids)
    await service.complete([job], [body.engine_prompt()], params, user=body.user, is_background=True)
    return result_object(job)


class SavedGenerate:
    """SavedKind of POST /generate."""

    def __init__(self, read_check: Callable[[Any], Any]) -> None:
        """`read_check` makes the check of an answer again, as Service.read_check."""
        self._read_check = read_check

    def attachment(self, stored: Any) -> Attachment | None:
        """Return the check of the answer, if there is one."""
        check: Attachment | None = self._read_check(stored)
        return check

    def params(
        self, body: Mapping[str, Any], attachment: Attachment | None, defaults: Mapping[str, Any]
    ) -> SamplingParams:
        """Rebuild the sampling parameters from the stored request."""
        return GenerateRequest.read(body, defaults=defaults).sampling()

    async def renewed(self, engine: Any, settings: Any, kept: SavedRequest) -> tuple[Any, SavedRequest]:
        """Return the stored prompt, unchanged."""
        return GenerateRequest.read(kept.body).engine_prompt(), kept
