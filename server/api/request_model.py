"""Base of request bodies: strict pydantic models with our own error sentences, and the functions that read them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from ...engine.checks import Schema, nullable, unknown_field
from ...engine.errors import InvalidRequestError, ModelNotFoundError
from ..http.json_body import FIELDS, read_json
from ..http.response_middleware import answer_headers, listed
from ..service import Service, service_of
from .known_fields import FOREIGN, HARMLESS, OTHER_NAMES, asks_for_nothing

_MAX_IGNORED = 100  # fields of a body that have no effect; each is compared with all known names

# Sentences by type of pydantic's errors; "{…}" is from the error's context.
_SENTENCES = {
    "missing": "is missing",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "literal_error": "must be {expected}",
    "string_too_long": "must be a string of at most {max_length} characters",
    "string_pattern_mismatch": "must be 1 to 64 letters, digits, _ or -",  # Name is the only pattern
    "too_long": "takes at most {max_length} items, not {actual_length}",
    "unsupported": "is not supported here; {way_out}",
    "no_effect": "has no effect here; leave it out, or start the server without --strict-fields",
    "foreign": "is another server's field; leave it out, or start the server without --strict-fields",
}


@dataclass(frozen=True, kw_only=True)
class ParseContext:
    """Context of reading one body: the strictness, and the fields without effect that were found."""

    is_strict: bool = False  # refuse fields without effect
    ignored: dict[str, None] = field(default_factory=dict)  # set in order of insertion

    def ignore(self, path: str) -> None:
        """Note a field that has no effect here. Raises InvalidRequestError if reading is strict, or there are many."""
        if self.is_strict:
            raise InvalidRequestError(f"{path} {_SENTENCES['no_effect']}", param=path)
        self.ignored[path] = None
        if len(self.ignored) > _MAX_IGNORED:
            raise InvalidRequestError(
                f"more than {_MAX_IGNORED} fields have no effect here; leave them out", param=path
            )


def _complete_schema(schema: Schema, model: "type[RequestModel]") -> None:
    """Complete pydantic's schema: null counts as absent, unknown fields are refused, ignored fields are listed."""
    properties = schema.setdefault("properties", {})
    for name, field_schema in properties.items():
        field_schema.pop("title", None)
        if field_schema.get("default", False) is None:
            del field_schema["default"]
        if name not in schema.get("required", ()):
            properties[name] = nullable(field_schema)
    for name in sorted(model.ignored.keys() - properties.keys()):
        properties[name] = {"description": "Accepted without effect, and named in X-Ignored-Fields."}
    for name, harmless in model.unsupported.items():
        properties[name] = {"enum": [*harmless, None], "description": "Not supported: only these values are accepted."}
    properties |= {name: field_schema for name, field_schema in model.more_fields.items() if name not in properties}
    schema["additionalProperties"] = model.is_tolerant


class RequestModel(BaseModel):
    """A JSON object of a request. null counts as absent; unknown fields are refused or, by rule, ignored by name."""

    model_config = ConfigDict(strict=True, frozen=True, hide_input_in_errors=True, json_schema_extra=_complete_schema)
    path: ClassVar[str] = ""  # path of a nested object, ending in a dot
    ignored: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # without effect: the field, its values that ask for nothing
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # refused: the field, its values that ask for nothing
    is_tolerant: ClassVar[bool] = False  # True on APIs that others define: unknown fields follow tolerance.py
    more_fields: ClassVar[Mapping[str, Schema]] = {}  # fields that the model accepts without declaring them
    example: ClassVar[Mapping[str, Any] | None] = None  # a whole body, for the document
    way_out: ClassVar[Mapping[str, str]] = {}  # advice for an unsupported field; default: leave it out
    _declared: ClassVar[frozenset[str]] = frozenset()
    _known: ClassVar[frozenset[str]] = frozenset()
    _as_sent: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _defaults: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _ignored_fields: tuple[str, ...] = PrivateAttr(())
    _adapter: str | None = PrivateAttr(None)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._declared = frozenset(field.alias or name for name, field in cls.model_fields.items())
        # A route that declares another server's field supports it.
        cls.unsupported = {
            name: values
            for name, values in cls.unsupported.items()
            if name not in cls._declared or values is not HARMLESS.get(name)
        }
        cls._known = cls._declared.union(cls.ignored, cls.unsupported, cls.more_fields)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        reading: ParseContext = info.context or ParseContext()
        for name in OTHER_NAMES.keys() & cls._known & value.keys():
            value, other = {**value}, value[name]
            del value[name]
            if other is not None and value.setdefault(OTHER_NAMES[name], other) != other:
                raise PydanticCustomError("differs", f"differs from {OTHER_NAMES[name]}; send one", {"name": name})
        if unknown := value.keys() - cls._known:
            cls._check_unknown({name: value[name] for name in sorted(unknown)}, reading)
        fields = {name: item for name, item in value.items() if item is not None and name not in unknown}
        if reading.is_strict and (foreign := fields.keys() & FOREIGN - cls._declared):
            raise PydanticCustomError("foreign", "", {"name": min(foreign)})
        for name in cls.unsupported.keys() & fields.keys():
            if not asks_for_nothing(fields.pop(name), cls.unsupported[name]):
                way_out = cls.way_out.get(name, "leave it out")
                raise PydanticCustomError("unsupported", "", {"name": name, "way_out": way_out})
        for name in sorted(cls.ignored.keys() & fields.keys()):
            if not asks_for_nothing(fields[name], cls.ignored[name]):
                reading.ignore(cls.path + name)
            if name not in cls._declared:
                del fields[name]
        cls._look_into(fields, reading)
        return fields

    @classmethod
    def _check_unknown(cls, fields: Mapping[str, Any], reading: ParseContext) -> None:
        """Note unknown fields that are ignored. Raises if one must not be."""
        if reading.is_strict or not cls.is_tolerant:
            raise PydanticCustomError("unknown_field", "", {"name": min(fields), "known": cls._known})
        from .tolerance import ignore_unknown  # here: few requests have unknown fields

        ignore_unknown(fields, reading.ignore, known=cls._known, at=cls.path)

    @classmethod
    def _look_into(cls, fields: Mapping[str, Any], reading: ParseContext) -> None:
        """Note ignored keys inside fields that the model does not validate itself. Raises InvalidRequestError."""

    @classmethod
    def read(
        cls, fields: Mapping[str, Any], *, is_strict: bool = False, defaults: Mapping[str, Any] | None = None
    ) -> Self:
        """Validate the fields of a request. `is_strict` refuses fields without effect. Raises InvalidRequestError.

        `defaults`: values of sampling fields that are absent.
        """
        reading = ParseContext(is_strict=is_strict)
        try:
            body = cls.model_validate(fields, context=reading)
        except ValidationError as exc:
            raise refusal(exc.errors(include_url=False, include_input=False)[0]) from exc
        body._as_sent, body._defaults = fields, defaults or {}
        body._ignored_fields = tuple(reading.ignored)
        return body

    @classmethod
    async def from_request(cls, request: Request) -> Self:
        """Read the body of a POST to the served model. A route depends on this, and the document shows the model.

        Raises like `read_fields` and `read_json`.
        """
        service = service_of(request)
        fields = cls._renamed(service, await read_json(request, max_bytes=service.settings.max_body_bytes))
        if service.results.backend.is_shared:
            request.scope[FIELDS] = fields
        body = read_fields(service, fields, cls)
        body.name_ignored(request)
        if (label := getattr(body, "request_id", None)) and "x-request-id" not in request.headers:
            answer_headers(request)["X-Request-Id"] = label
        return body

    @classmethod
    def _renamed(cls, service: Service, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields with the API's own spellings put into ours."""
        return fields

    def name_ignored(self, request: Request) -> None:
        """Name the fields that had no effect in the answer's headers."""
        if self._ignored_fields:
            answer_headers(request)["X-Ignored-Fields"] = listed(self._ignored_fields)

    @property
    def as_sent(self) -> Mapping[str, Any]:
        """Fields of the body as they were sent."""
        return self._as_sent

    @property
    def adapter_field(self) -> str:
        """Name of an adapter in a field beside `model`; "" without one."""
        return ""

    @property
    def adapter(self) -> str | None:
        """Name of the adapter that answers in place of the model."""
        return self._adapter

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Values of sampling fields that are absent."""
        return self._defaults

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        """Paths of the fields that had no effect."""
        return self._ignored_fields


Body = TypeVar("Body", bound=RequestModel)
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
# The longest that Linux takes. A million folders, 2 MB, were not looked up after a minute.
ServerPath = Annotated[str, Field(max_length=4096)]
ModelName = Annotated[str | None, Field(description="Name of the served model or of an adapter; else a 404.")]
User = Annotated[str, Field(max_length=256, description="The end user, for fair scheduling on a server without keys.")]


def read_fields(
    service: Service, fields: Mapping[str, Any], kind: type[Body], *, defaults: Mapping[str, Any] | None = None
) -> Body:
    """Read the fields of a request to the served model. `defaults`: None for the server's.

    Raises InvalidRequestError, ModelNotFoundError.
    """
    name = fields.get("model")
    service.check_model(name)
    defaults = service.default_sampling_params if defaults is None else defaults
    body = kind.read(fields, is_strict=service.settings.strict_fields, defaults=defaults)
    asked = body.adapter_field
    body._adapter = service.adapter_named(asked or name)
    if asked and body._adapter is None:
        raise ModelNotFoundError(f"the adapter {asked[:100]!r} is not loaded")
    if ignored := body.ignored_fields:
        service.metrics.on_ignored_fields(len(ignored))
    return body


def refusal(error: Mapping[str, Any]) -> InvalidRequestError:
    """Turn pydantic's error into a sentence that names the place."""
    context = error.get("ctx", {})
    at = _path([*error["loc"], context["name"]] if "name" in context else error["loc"])
    if error["type"] == "unknown_field":
        return unknown_field(at, [_path([*error["loc"], name]) for name in context["known"]])
    sentence = _SENTENCES.get(error["type"])
    return InvalidRequestError(f"{at} {error['msg'] if sentence is None else sentence.format(**context)}", param=at)


def _path(places: Iterable[int | str]) -> str:
    return "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places).removeprefix(".")
