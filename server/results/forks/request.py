"""Body of POST /fork."""

from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ....engine.core.sampling_params import SamplingParams
from ...api.sampling_request import SamplingRequest

_NAMES = {item.name for item in fields(SamplingParams)}


class ForkRequest(SamplingRequest):
    """An answer to continue from one of its tokens. Sampling fields that are absent keep their values."""

    example: ClassVar = {"seq_id": "the id of an answer", "at": 8, "append_text": " But"}
    seq_id: str
    output: Annotated[int, Field(ge=0, description="Index of the answer's output.")] = 0
    at: Annotated[int | None, Field(ge=0, description="Tokens of the answer that are kept; default all.")] = None
    append_token_ids: Annotated[list[int] | None, Field(description="Tokens that follow the kept ones.")] = None
    append_text: Annotated[str | None, Field(description="Text that follows the kept tokens.")] = None

    def changed(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters of the fork. Raises InvalidRequestError."""
        asked, given = self.sampling(), set(self.__pydantic_extra__ or {}) & _NAMES
        if asked.structured_outputs is not None:
            given.add("structured_outputs")
        changes: dict[str, Any] = {name: getattr(asked, name) for name in given}
        if self.model is not None or self.lora_path:
            changes["adapter"] = asked.adapter
        return replace(params, **(changes | {"wants_receipt": asked.wants_receipt}))
