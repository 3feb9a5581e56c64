"""What every request for text has: the model, the user, the sampling fields and the shape of the output.

The sampling fields stand in SamplingParams' table and nowhere else: here they are passed through and shown.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, WithJsonSchema

from ...engine.checks import schemas_of
from ...engine.errors import InvalidRequestError
from ...engine.sampling_params import SamplingParams
from ...engine.structured_output.params import StructuredOutputs
from .request_model import ModelName, RequestModel, User
from .response_format import ResponseFormat

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

    def sampling(self, *, names: Mapping[str, str] | None = None, **changed: Any) -> SamplingParams:
        """The parameters; `changed` are fields that the route sets, `names` what it calls some. Raises."""
        fields = {**(self.__pydantic_extra__ or {}), **changed}
        return SamplingParams.from_fields(fields, default_max_tokens=self.default_max_tokens, names=names or {})


class FormattedRequest(SamplingRequest):
    """The same with OpenAI's `response_format`."""

    response_format: ResponseFormat | None = None

    def sampling(self, *, names: Mapping[str, str] | None = None, **changed: Any) -> SamplingParams:
        """The parameters, with the structured outputs that response_format stands for."""
        if self.response_format is not None:
            extra = self.__pydantic_extra__ or {}
            changed |= only_one(
                self.response_format.structured_outputs(), extra.get("structured_outputs"), name="response_format"
            )
        return super().sampling(names=names, **changed)


def only_one(outputs: StructuredOutputs | None, given: object, *, name: str) -> dict[str, Any]:
    """The field structured_outputs, if the one called `name` does not say another time what is `given`."""
    if outputs is None:
        return {}
    if given is not None:
        raise InvalidRequestError(
            f"{name} and structured_outputs both say what the output must be; send one of them", param=name
        )
    return {"structured_outputs": outputs}
