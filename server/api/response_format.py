"""OpenAI's response_format, and text.format of /v1/responses: other spellings of structured_outputs."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from ...engine.structured_output.params import StructuredOutputs
from .request_model import RequestModel

Kind = Literal["text", "json_object", "json_schema"]
SchemaName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class NamedSchema(RequestModel):
    """A JSON schema as response_format has it."""

    name: SchemaName
    schema_: dict[str, Any] = Field(alias="schema", description="The output keeps to it, strict or not.")
    strict: bool = False
    description: str = ""


class _Format(RequestModel):
    type: Kind
    needed: ClassVar[tuple[str, ...]]  # for the type json_schema

    @model_validator(mode="before")
    @classmethod
    def _check_object(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise PydanticCustomError("format", "must be an object with a type", {"name": "type"})
        return value

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        given = self.model_fields_set - {"type"}
        missing = [name for name in self.needed if name not in given]
        if self.type == "json_schema" and missing:
            raise PydanticCustomError("missing", "", {"name": missing[0].rstrip("_")})
        if self.type != "json_schema" and given:
            raise PydanticCustomError("format", "goes with the type json_schema only", {"name": min(given).rstrip("_")})
        return self

    def _outputs(self, schema: dict[str, Any] | None, *, param: str) -> StructuredOutputs | None:
        if self.type == "text":
            return None
        if schema is None:
            return StructuredOutputs(json_object=True, param=param)
        return StructuredOutputs(json=schema, param=f"{param}.schema")


class ResponseFormat(_Format):
    """What chat completions have, and all other routes take too."""

    needed = ("json_schema",)
    json_schema: NamedSchema | None = None

    def structured_outputs(self) -> StructuredOutputs | None:
        """The same in our words; None for text. Raises InvalidRequestError."""
        if self.json_schema is None:
            return self._outputs(None, param="response_format")
        return self._outputs(self.json_schema.schema_, param="response_format.json_schema")


class TextFormat(_Format):
    """What /v1/responses has, whose schema has no object of its own."""

    needed = ("name", "schema_")
    name: SchemaName | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool = False
    description: str = ""

    def structured_outputs(self) -> StructuredOutputs | None:
        """The same in our words; None for text. Raises InvalidRequestError."""
        return self._outputs(self.schema_, param="text.format")
