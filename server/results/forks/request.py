"""Body of POST /fork."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ....engine.core.sampling_params import FIELD_NAMES, SamplingParams
from ....engine.errors import InvalidRequestError
from ....engine.extras.receipts.request_fields import NAMES, read_params, request_fields
from ...api.sampling_request import SamplingRequest
from ...jobs.saved_request import SavedRequest

_NAMES = {item.name for item in fields(SamplingParams)}
_OTHERS = ("wants_receipt", *FIELD_NAMES - {*NAMES, "structured_outputs", "seed", "max_length"})


class ForkRequest(SamplingRequest):
    """An answer to continue from one of its tokens. Sampling fields that are absent keep their values."""

    example: ClassVar = {"seq_id": "the id of an answer", "at": 8, "append_text": " But"}
    seq_id: str
    output: Annotated[int, Field(ge=0, description="Index of the answer's output.")] = 0
    at: Annotated[int | None, Field(ge=0, description="Tokens of the answer that are kept; default all.")] = None
    append_token_ids: Annotated[list[int] | None, Field(description="Tokens that follow the kept ones.")] = None
    append_text: Annotated[str | None, Field(description="Text that follows the kept tokens.")] = None
    durable: Annotated[bool, Field(description="Keep a stream like a job, on a server with results on disk.")] = False

    def changed(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters of the fork. Raises InvalidRequestError."""
        asked, given = self.sampling(), set(self.__pydantic_extra__ or {}) & _NAMES
        if asked.structured_outputs is not None:
            given.add("structured_outputs")
        changes: dict[str, Any] = {name: getattr(asked, name) for name in given}
        if self.model is not None or self.lora_path:
            changes["adapter"] = asked.adapter
        return replace(params, **(changes | {"wants_receipt": asked.wants_receipt}))


class SavedFork:
    """SavedKind of POST /fork: its parameters are kept, and not those fields of its body that changed others."""

    @staticmethod
    def saved(params: SamplingParams, seed: int, *, max_tokens: int) -> SavedRequest:
        """Return what is kept of a fork with these parameters, which may have `max_tokens` in all."""
        others = {name: getattr(params, name) for name in _OTHERS}
        request = request_fields(params, max_tokens=max_tokens)
        body = {"request": request, "seed": seed, "others": others, "lora_path": params.adapter}
        return SavedRequest(kind="fork", body=body)

    def attachment(self, stored: Any) -> None:
        """Return nothing."""

    def params(self, body: Mapping[str, Any], attachment: Any, defaults: Mapping[str, Any]) -> SamplingParams:
        """Like SavedKind."""
        return replace(read_params(body["request"], seed=body["seed"]), **body["others"])

    async def renewed(self, engine: Any, settings: Any, kept: SavedRequest) -> tuple[Any, SavedRequest]:
        """Raise InvalidRequestError: a fork goes on with its own model alone."""
        raise InvalidRequestError("a fork goes on with the model of its answer alone")


KEPT_FORK = SavedFork()
