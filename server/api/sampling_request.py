"""What every request for text has: the model, the user, the sampling fields and the format of the output.

The sampling fields stand in SamplingParams' table and nowhere else: here they are passed through and shown.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, WithJsonSchema

from ...engine.checks import schemas_of
from ...engine.errors import InvalidRequestError
from ...engine.sampling_params import SamplingParams
from .request_model import ModelName, RequestModel, User
from .response_format import ResponseFormat, TextFormat

SAMPLING_FIELDS = schemas_of(SamplingParams)


def like(field_name: str) -> WithJsonSchema:
    """The schema of a sampling field that a route has under another name."""
    return WithJsonSchema(SAMPLING_FIELDS[field_name])


class SamplingRequest(RequestModel):
    """A body with sampling fields at top level."""

    model_config = ConfigDict(extra="allow")
    more_fields = SAMPLING_FIELDS
    default_max_tokens: ClassVar[int | None] = None  # all that fits

    model: ModelName = None
    user: User = ""
    stream: bool = False
    response_format: ResponseFormat | None = None

    def sampling(
        self, *, names: Mapping[str, str] | None = None, text_format: TextFormat | None = None, **changed: Any
    ) -> SamplingParams:
        """The parameters; `changed` are fields that the route sets, `names` what it calls some. Raises."""
        fields = {**(self.__pydantic_extra__ or {}), **changed}
        output = self.response_format or text_format
        outputs = None if output is None else output.structured_outputs()
        if output is not None and outputs is not None and fields.get("structured_outputs") is not None:
            raise InvalidRequestError(
                f"{output.name_} and structured_outputs both say what the output must be; send one of them",
                param=output.name_,
            )
        fields |= {} if outputs is None else {"structured_outputs": outputs}
        return SamplingParams.from_fields(fields, default_max_tokens=self.default_max_tokens, names=names or {})
