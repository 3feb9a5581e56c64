"""OpenAI's response_format and text.format of /v1/responses: other spellings of structured_outputs."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from ...engine.language.structured_output.params import StructuredOutputs
from .request_model import Name, RequestModel

Kind = Literal["text", "json_object", "json_schema"]


class NamedSchema(RequestModel):
    """A JSON schema with a name, for response_format."""

    name: Name
    schema_: dict[str, Any] = Field(
        alias="schema", description="The output matches the schema, with or without `strict`."
    )
    strict: bool = False
    description: str = ""


class _Format(RequestModel):
    type: Kind
    needed: ClassVar[tuple[str, ...]]  # required with the type json_schema
    name_: ClassVar[str]  # field name in the request

    @model_validator(mode="before")
    @classmethod
    def _check_object(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise PydanticCustomError("format", "must be an object with a type", {"name": "type"})
        return value

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        names = self.model_fields_set - {"type"} - self._also
        missing = [name for name in self.needed if name not in names]
        if self.type == "json_schema" and missing:
            raise PydanticCustomError("missing", "", {"name": missing[0].rstrip("_")})
        if self.type != "json_schema" and names:
            raise PydanticCustomError("format", "goes with the type json_schema only", {"name": min(names).rstrip("_")})
        return self

    @property
    def _also(self) -> frozenset[str]:
        """Keys that are also allowed with other types."""
        return frozenset()

    def structured_outputs(self) -> Any:
        """Return the constraint for SamplingParams, None for text. Raises InvalidRequestError."""
        if self.type == "text":
            return None
        if self.type in ("json_object", "json"):
            return self._outputs(json_object=True, param=self.name_)
        schema, at = self._schema()
        return self._outputs(json=schema, param=f"{at}.schema")

    def _outputs(self, **fields: Any) -> Any:
        return StructuredOutputs(**fields)

    def _schema(self) -> tuple[dict[str, Any] | None, str]:
        """Return the schema and its path."""
        raise NotImplementedError


class ResponseFormat(_Format):
    """Format of the output in OpenAI's chat completions; all other routes take it too."""

    needed = ("json_schema",)
    path = "response_format."
    name_ = "response_format"
    json_schema: NamedSchema | None = None
    type: Literal["text", "json_object", "json_schema", "json"]  # type: ignore[assignment]  # json: Hugging Face's
    value: dict[str, Any] | None = Field(None, description="The schema in TGI's spelling, with json_object or json.")
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="The same in llama.cpp's spelling.")

    @property
    def _also(self) -> frozenset[str]:
        return frozenset({"value", "schema_"} if self.type in ("json_object", "json") else ())

    def structured_outputs(self) -> Any:
        """Like `_Format.structured_outputs`, but reads TGI's spelling too. Raises InvalidRequestError."""
        if self.type in ("json_object", "json") and (self.value is not None or self.schema_ is not None):
            name, schema = ("schema", self.schema_) if self.value is None else ("value", self.value)
            return self._outputs(json=schema, param=f"response_format.{name}")
        return super().structured_outputs()

    def _schema(self) -> tuple[dict[str, Any] | None, str]:
        assert self.json_schema is not None  # checked by _check_schema
        return self.json_schema.schema_, "response_format.json_schema"


class TextFormat(_Format):
    """Format of the output of /v1/responses: the schema's keys stand beside the type."""

    needed = ("name", "schema_")
    name_ = "text.format"
    name: Name | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool = False
    description: str = ""

    def _schema(self) -> tuple[dict[str, Any] | None, str]:
        return self.schema_, self.name_
