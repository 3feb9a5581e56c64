"""Fields that every request for text has: the model, the user, the sampling fields and the format of the output.

SamplingParams' table alone defines the sampling fields; this module passes them through and documents them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from ...engine.checks import schemas_of
from ...engine.core.sampling_params import SamplingParams
from ...engine.errors import InvalidRequestError
from ...engine.language.structured_output.params import StructuredOutputs
from ..http.response_middleware import MAX_CHARS, is_label
from .known_fields import CONSTRAINTS, HARMLESS, HINTS, NOTHING, OTHER_NAMES, asks_for_nothing
from .request_model import ModelName, RequestModel, User
from .response_format import ResponseFormat, TextFormat

SAMPLING_FIELDS = schemas_of(SamplingParams)
for _name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
    del SAMPLING_FIELDS[_name]["default"]  # the model's; a generated client would send the neutral one
SAMPLING_FIELDS |= {name: SAMPLING_FIELDS[own] for name, own in OTHER_NAMES.items()}
_STRUCTURED_FIELDS = schemas_of(StructuredOutputs)


def schema_of(field_name: str) -> WithJsonSchema:
    """Return the schema of a sampling field, for a route that calls it by another name."""
    return WithJsonSchema(SAMPLING_FIELDS[field_name])


def _label(text: str) -> str:
    if not is_label(text):
        raise PydanticCustomError("label", f"must be 1 to {MAX_CHARS} printable ASCII characters")
    return text


class SamplingRequest(RequestModel):
    """A body with sampling fields at top level."""

    model_config = ConfigDict(extra="allow")
    more_fields = SAMPLING_FIELDS | {
        name: {"anyOf": [_STRUCTURED_FIELDS.get(own, {}), {"enum": [*NOTHING]}]} for name, own in CONSTRAINTS.items()
    }
    ignored = HINTS
    unsupported = HARMLESS
    default_max_tokens: ClassVar[int | None] = None  # None: the rest of the context

    model: ModelName = None
    user: User = ""
    stream: bool = False
    request_id: Annotated[
        str | None,
        AfterValidator(_label),
        Field(description="The answer's X-Request-Id, if the request has no such header."),
    ] = None
    lora_path: Annotated[str, Field(description="SGLang's field: the name of an adapter, in place of `model`.")] = ""
    response_format: ResponseFormat | None = None
    receipt: Annotated[bool, Field(description="Return a receipt, by which POST /verify checks the answer.")] = False

    @property
    def adapter_field(self) -> str:
        return self.lora_path

    def sampling(
        self,
        *,
        names: Mapping[str, str] | None = None,
        text_format: TextFormat | None = None,
        budget: tuple[str, Any] = ("", None),
        **changed: Any,
    ) -> SamplingParams:
        """Build the parameters. `changed` are fields set by the route, `names` the route's names of fields. Raises.

        `budget`: tokens of reasoning that the route's API has under another name.
        """
        fields = {**(self.__pydantic_extra__ or {}), **changed}
        set_budget(fields, *budget)
        output = self.response_format or text_format
        outputs = None if output is None else output.structured_outputs()
        constraints = _foreign_constraints(fields) | {"structured_outputs": fields.pop("structured_outputs", None)}
        if output is not None and outputs is not None:
            constraints = {output.name_: outputs, **constraints}
        sources = [name for name, value in constraints.items() if value is not None]
        if len(sources) > 1:
            raise InvalidRequestError(
                f"{' and '.join(sources)} both say what the output must be; send one of them", param=sources[0]
            )
        fields["structured_outputs"] = constraints[sources[0]] if sources else None
        internal = {
            "default_max_tokens": self.default_max_tokens,
            "names": names or {},
            "wants_receipt": self.receipt,
            "adapter": self.adapter,
        }
        params = SamplingParams.from_fields(fields, defaults=self.defaults, **internal)
        if params.structured_outputs is None:
            return params
        # The finished answer is checked for keywords that no grammar enforces (answer_check.py).
        return replace(params, structured_outputs=replace(params.structured_outputs, relaxes=True))


def set_budget(fields: dict[str, Any], name: str, budget: Any, *, own: str = "thinking_budget") -> None:
    """Put the tokens of reasoning that stand as `name` into the fields. Raises if the fields have others, as `own`."""
    if budget is not None and fields.setdefault("thinking_budget", budget) != budget:
        raise InvalidRequestError(f"{name} differs from {own}; send one", param=name)


def _foreign_constraints(fields: dict[str, Any]) -> dict[str, Any]:
    """Take the constraints under other servers' names out of the fields. Raises.

    A client for several versions of vLLM sends the old name beside the new one: they count as one constraint.
    """
    own = fields.get("structured_outputs")
    constraints = {name: fields.pop(name, None) for name in CONSTRAINTS}
    spacing = constraints.pop("guided_whitespace_pattern")
    return {
        name: StructuredOutputs(**{CONSTRAINTS[name]: value}, whitespace_pattern=spacing or None, param=name)
        for name, value in constraints.items()
        if value is not None and not asks_for_nothing(value, NOTHING) and (spacing or own != {CONSTRAINTS[name]: value})
    }
