"""Constraint of a request on its output: a JSON schema, any JSON object, a regex, a choice or a grammar.

This module knows the fields and their limits; the compiler decides if a schema or a grammar can be used. No tensors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ...checks import Flag, Schema, Text, ruled, rules_of, schemas_of, unknown_field
from ...errors import InvalidRequestError

MAX_CONSTRAINT_BYTES = 128 * 2**10
MAX_SCHEMA_BYTES = 2**20
MAX_CHOICES = 1024
KINDS = ("json", "json_object", "regex", "choice", "grammar")
# Whitespace of JSON: at most one space after "," and ":". Free whitespace lets a weak model write blank lines forever.
# Keys are llguidance's, so that a `%json` inside a grammar can have them as the schema's "x-guidance".
JSON_SPACING: Mapping[str, Any] = MappingProxyType(
    {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
)
_TEXT = Text(MAX_CONSTRAINT_BYTES)
_SCHEMA_TEXT = Text(MAX_SCHEMA_BYTES)


@dataclass(frozen=True)
class _SchemaText:
    """Rule of a JSON schema, given as an object or as text; kept as text."""

    def checked(self, name: str, value: object) -> str:
        if not isinstance(value, (str, Mapping)):
            raise InvalidRequestError(f"{name} must be a JSON schema (an object or its text)", param=name)
        try:
            text = value if isinstance(value, str) else _compact(value)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidRequestError(f"{name} cannot be written as JSON: {exc}", param=name) from exc
        return _SCHEMA_TEXT.checked(name, text)

    def json_schema(self) -> Schema:
        return {"anyOf": [{"type": "object"}, _SCHEMA_TEXT.json_schema()]}


@dataclass(frozen=True)
class _Choices:
    """Rule that the output is one of a list of strings."""

    def checked(self, name: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item for item in value):
            raise InvalidRequestError(f"{name} must be a list of strings that are not empty", param=name)
        if not 0 < len(value) <= MAX_CHOICES:
            raise InvalidRequestError(f"{name} takes 1 to {MAX_CHOICES} strings, not {len(value)}", param=name)
        _TEXT.checked(name, "".join(value))
        return tuple(value)

    def json_schema(self) -> Schema:
        return {"type": "array", "items": _TEXT.json_schema(), "minItems": 1, "maxItems": MAX_CHOICES}


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """Parameters with exactly one constraint, under vLLM's names. Raises InvalidRequestError."""

    json: str | Mapping[str, Any] | None = ruled(None, _SchemaText(), "A JSON schema, as an object or as text.")
    json_object: bool | None = ruled(None, Flag(), "True: any JSON object.")
    regex: str | None = ruled(None, _TEXT, "A regular expression of the whole output.")
    choice: Sequence[str] | None = ruled(None, _Choices(), "The output is one of these strings.")
    grammar: str | None = ruled(None, _TEXT, "Lark as llguidance reads it, with %json {schema} too; or GBNF.")
    disable_any_whitespace: bool = ruled(False, Flag(), 'For json and json_object: no space after "," and ":" either.')
    whitespace_pattern: str | None = ruled(
        None, _TEXT, "For json and json_object: a regex of the white space between tokens."
    )
    # True: leave out keywords that no grammar enforces; the finished answer has to be checked. False: refuse them.
    relaxes: bool = False
    param: str | None = None  # request's name for the constraint, if different
    is_optional: bool = False  # True: an unusable constraint is ignored

    def __post_init__(self) -> None:
        for name, default, rule in _RULES:
            value = getattr(self, name)
            if value is not default:
                object.__setattr__(self, name, rule.checked(self._name_of(name), value))
        self._check_relations()

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "StructuredOutputs":
        """Build from a request's JSON object. A field set to null counts as absent; unknown names are refused."""
        for name in sorted(fields.keys() - FIELD_NAMES):
            raise unknown_field(f"structured_outputs.{name}", [f"structured_outputs.{known}" for known in FIELD_NAMES])
        return cls(**{name: value for name, value in fields.items() if value is not None})

    @property
    def name(self) -> str:
        """Name of the constraint in the request."""
        return self._name_of(self.kind)

    @property
    def kind(self) -> str:
        """Kind of the constraint, one of KINDS."""
        return next(name for name in KINDS if _is_set(getattr(self, name)))

    def _name_of(self, field_name: str) -> str:
        return self.param or f"structured_outputs.{field_name}"

    def _check_relations(self) -> None:
        whole = self.param or "structured_outputs"
        kinds = [name for name in KINDS if _is_set(getattr(self, name))]
        if len(kinds) != 1:
            finding = f"{' and '.join(kinds)} are given" if kinds else "none is given"
            raise InvalidRequestError(f"{whole} takes exactly one of {', '.join(KINDS)}; {finding}", param=whole)
        for name in ("disable_any_whitespace", "whitespace_pattern"):
            if getattr(self, name) and kinds[0] not in ("json", "json_object"):
                at = self._name_of(name)
                raise InvalidRequestError(f"{at} goes with json or json_object, not with {kinds[0]}", param=at)
        if self.disable_any_whitespace and self.whitespace_pattern:
            reason = f"{whole}: disable_any_whitespace and whitespace_pattern contradict each other"
            raise InvalidRequestError(reason, param=whole)


StructuredOutputsParams = StructuredOutputs  # vLLM's name, for its scripts
_RULES = rules_of(StructuredOutputs)
FIELD_NAMES = frozenset(name for name, _, _ in _RULES)


@dataclass(frozen=True)
class StructuredOutputsRule:
    """Rule of a StructuredOutputs or an object of its fields."""

    def checked(self, name: str, value: object) -> StructuredOutputs | None:
        if value is None or isinstance(value, StructuredOutputs):
            return value
        if not isinstance(value, Mapping):
            raise InvalidRequestError(f'{name} must be an object such as {{"json": {{"type": "object"}}}}', param=name)
        return StructuredOutputs.from_fields(value)

    def json_schema(self) -> Schema:
        return {"type": "object", "properties": schemas_of(StructuredOutputs), "additionalProperties": False}


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _is_set(value: object) -> bool:
    return value is not None and value is not False
