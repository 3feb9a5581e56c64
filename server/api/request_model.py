"""The base of request bodies: strict pydantic models whose refusals are sentences of ours, and the way to read one."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from ...engine.checks import Schema, nullable, unknown_field
from ...engine.errors import InvalidRequestError
from ..http.json_body import FIELDS, read_json
from ..jobs.idempotency import IdempotencyKey
from ..service import Service, service_of

REPLAYED = {"Idempotent-Replayed": "true"}  # on the answer to a request that has come before with its key
# The sentence for each type of pydantic's errors; "{…}" is its context.
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
}


def _shown(schema: Schema, model: "type[RequestModel]") -> None:
    """Complete pydantic's schema: null counts as absent, unknown fields are refused, some are known and no more."""
    properties = schema.setdefault("properties", {})
    for name, shown in properties.items():
        shown.pop("title", None)
        if shown.get("default", False) is None:
            del shown["default"]
        if name not in schema.get("required", ()):
            properties[name] = nullable(shown)
    properties |= {name: {"description": "Accepted; nothing is done with it."} for name in model.ignored}
    for name, harmless in model.unsupported.items():
        properties[name] = {"enum": [*harmless, None], "description": "Not supported; other values are refused."}
    properties |= {name: shown for name, shown in model.more_fields.items() if name not in properties}
    schema["additionalProperties"] = False


class RequestModel(BaseModel):
    """A JSON object of a request. null counts as absent; what is not known is refused by name."""

    model_config = ConfigDict(strict=True, frozen=True, hide_input_in_errors=True, json_schema_extra=_shown)
    ignored: ClassVar[tuple[str, ...]] = ()
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # with the values that ask for nothing
    more_fields: ClassVar[Mapping[str, Schema]] = {}  # that the model has without declaring them
    way_out: ClassVar[Mapping[str, str]] = {}  # instead of an unsupported field, if not to leave it out
    _known: ClassVar[frozenset[str]] = frozenset()
    _as_sent: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        declared = {field.alias or name for name, field in cls.model_fields.items()}
        cls._known = frozenset(declared).union(cls.ignored, cls.unsupported, cls.more_fields)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if unknown := value.keys() - cls._known:
            raise PydanticCustomError("unknown_field", "", {"name": min(unknown), "known": cls._known})
        kept = {name: item for name, item in value.items() if item is not None and name not in cls.ignored}
        for name in cls.unsupported.keys() & kept.keys():
            asked = kept.pop(name)
            if not any(type(asked) is type(harmless) and asked == harmless for harmless in cls.unsupported[name]):
                way_out = cls.way_out.get(name, "leave it out")
                raise PydanticCustomError("unsupported", "", {"name": name, "way_out": way_out})
        return kept

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """The request in these fields. Raises InvalidRequestError."""
        try:
            body = cls.model_validate(fields)
        except ValidationError as exc:
            raise _refusal(exc) from exc
        body._as_sent = fields
        return body

    @property
    def as_sent(self) -> Mapping[str, Any]:
        """The fields that it was read from."""
        return self._as_sent


Body = TypeVar("Body", bound=RequestModel)
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
ModelName = Annotated[str | None, Field(description="The served model's name; another is a 404.")]
User = Annotated[str, Field(max_length=256, description="The end user, for fair scheduling on a server without keys.")]


async def read_request(request: Request, kind: type[Body]) -> Body:
    """The body of a POST to the served model. Raises InvalidRequestError, ModelNotFoundError and as `read_json`."""
    service = service_of(request)
    fields = await read_json(request, max_bytes=service.settings.max_body_bytes)
    if service.results.is_shared:
        request.scope[FIELDS] = fields
    return read_fields(service, fields, kind)


def read_fields(service: Service, fields: Mapping[str, Any], kind: type[Body]) -> Body:
    """The same of a body's JSON."""
    service.check_model(fields.get("model"))
    return kind.read(fields)


def idempotency_key(request: Request, body: RequestModel) -> IdempotencyKey | None:
    """The key that this request came with. Raises InvalidRequestError."""
    return IdempotencyKey.read(request.headers.get("idempotency-key"), path=request.url.path, body=body.as_sent)


def _refusal(exc: ValidationError) -> InvalidRequestError:
    """The first error as a sentence that names the place."""
    error = exc.errors(include_url=False, include_input=False)[0]
    context = error.get("ctx", {})
    at = _path([*error["loc"], context["name"]] if "name" in context else error["loc"])
    if error["type"] == "unknown_field":
        return unknown_field(at, [_path([*error["loc"], name]) for name in context["known"]])
    sentence = _SENTENCES.get(error["type"])
    return InvalidRequestError(f"{at} {error['msg'] if sentence is None else sentence.format(**context)}", param=at)


def _path(places: Iterable[int | str]) -> str:
    return "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places).removeprefix(".")
