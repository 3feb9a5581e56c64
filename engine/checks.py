"""Checks of values from outside. A check that fails raises InvalidRequestError with the user's name of the field.

A rule checks one field of a request, normalises its value and describes itself as JSON Schema. A dataclass declares a
field by `ruled`: name, type, default, limits and description in one line, for Python's users and for /openapi.json.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from .errors import InvalidRequestError

Schema = dict[str, Any]
_MAX_LISTED = 8  # names in an error message


def check_token_ids(ids: Iterable[int], *, vocab_size: int, param: str) -> None:
    """Raise unless every id is in [0, vocab_size)."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            reason = f"{param}: token id {shown(token_id)} is outside the vocabulary [0, {vocab_size})"
            raise InvalidRequestError(reason, param=param)


def check_text(text: str, *, param: str) -> None:
    """Raise if the text cannot be written as UTF-8 (a lone surrogate)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise InvalidRequestError(
            f"{param} holds a lone surrogate at character {exc.start}; send valid Unicode", param=param
        ) from exc


def shown(value: object) -> str:
    """Quote a value for an error message, in at most 40 characters."""
    text = repr(value) if not (isinstance(value, int) and abs(value) >= 2**64) else "(a number beyond 64 bits)"
    return text if len(text) <= 40 else text[:37] + "..."


class Rule(Protocol):
    """Rule for the values of one field."""

    def checked(self, name: str, value: object) -> Any:
        """Return the value in normal form. Raises InvalidRequestError."""

    def json_schema(self) -> Schema:
        """Describe the valid values."""


def ruled(default: Any, rule: Rule, description: str) -> Any:
    """Declare a dataclass field that requests have too."""
    metadata = {"rule": rule, "description": description}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def rules_of(kind: Any) -> list[tuple[str, Any, Rule]]:
    """List name, default and rule of every field with a rule."""
    return [(f.name, f.default, f.metadata["rule"]) for f in dataclasses.fields(kind) if f.metadata]


def schemas_of(kind: Any) -> dict[str, Schema]:
    """Map the fields with a rule to their JSON schemas. null counts as absent."""
    return {
        f.name: nullable(f.metadata["rule"].json_schema()) | _about(f.default, f.metadata["description"])
        for f in dataclasses.fields(kind)
        if f.metadata
    }


def nullable(schema: Schema) -> Schema:
    """Extend a schema by null."""
    null = {"type": "null"}
    if "$ref" in schema:
        return {"anyOf": [schema, null]}
    if "anyOf" in schema:
        return schema if null in schema["anyOf"] else {**schema, "anyOf": [*schema["anyOf"], null]}
    return {**schema, "type": [schema["type"], "null"]} if isinstance(schema.get("type"), str) else schema


def _about(default: object, description: str) -> Schema:
    known = isinstance(default, (bool, int, float))
    return {"description": description, **({"default": default} if known else {})}


def unknown_field(name: str, known: Iterable[str]) -> InvalidRequestError:
    """Create the error for an unknown field. Its message names the nearest known field, or all if there are few."""
    import difflib  # here: it takes 3 ms, which only a refusal should cost

    name, known = name[:100], sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        way_out = f"did you mean {near[0]}?"
    elif len(known) <= _MAX_LISTED:
        way_out = f"known are {', '.join(known)}"
    else:
        nearest = "".join(difflib.get_close_matches(name, known, n=1, cutoff=0.0))
        way_out = f"leave it out; the nearest that is known is {nearest}"
    return InvalidRequestError(f"unknown field {name!r}; {way_out}", param=name)


@dataclass(frozen=True)
class Integer:
    """Integer in [low, high]; a bool is refused."""

    low: int
    high: int

    def checked(self, name: str, value: object) -> int:
        if type(value) is not int:
            raise InvalidRequestError(f"{name} must be an integer, not {type(value).__name__}", param=name)
        if not self.low <= value <= self.high:
            reason = f"{name} must be between {self.low} and {self.high}, not {shown(value)}"
            raise InvalidRequestError(reason, param=name)
        return value

    def json_schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Number:
    """Finite number in [low, high] or (low, high], kept as a float."""

    low: float
    high: float
    is_above_low: bool = False

    def checked(self, name: str, value: object) -> float:
        if type(value) not in (int, float):
            raise InvalidRequestError(f"{name} must be a number, not {type(value).__name__}", param=name)
        assert isinstance(value, (int, float))
        # Comparison first: an int beyond float range must not reach float(). NaN fails the comparison too.
        if not self.low <= value <= self.high or not math.isfinite(value) or (self.is_above_low and value == self.low):
            limits = f"{'above' if self.is_above_low else 'from'} {self.low:g} to {self.high:g}"
            raise InvalidRequestError(f"{name} must be a finite number {limits}", param=name)
        return float(value)

    def json_schema(self) -> Schema:
        return {
            "type": "number",
            "exclusiveMinimum" if self.is_above_low else "minimum": self.low,
            "maximum": self.high,
        }


@dataclass(frozen=True)
class Flag:
    """Boolean."""

    def checked(self, name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise InvalidRequestError(f"{name} must be true or false", param=name)
        return value

    def json_schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def checked(self, name: str, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise InvalidRequestError(f"{name} must be {' or '.join(self.words)}, not {shown(value)}", param=name)
        return value

    def json_schema(self) -> Schema:
        return {"anyOf": [{"type": "string", "enum": list(self.words)}]}


@dataclass(frozen=True)
class Text:
    """String of 1 to `max_bytes` bytes of UTF-8."""

    max_bytes: int

    def checked(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise InvalidRequestError(f"{name} must be a string", param=name)
        check_text(value, param=name)
        num_bytes = len(value.encode("utf-8"))
        if not 0 < num_bytes <= self.max_bytes:
            raise InvalidRequestError(f"{name} must have 1 to {self.max_bytes} bytes, not {num_bytes}", param=name)
        return value

    def json_schema(self) -> Schema:
        # JSON Schema counts characters: `max_bytes` is an upper bound of their number.
        return {"type": "string", "minLength": 1, "maxLength": self.max_bytes}


@dataclass(frozen=True)
class Strings:
    """String or list of strings of 1 to `max_chars` characters, kept as a tuple."""

    max_items: int
    max_chars: int

    def checked(self, name: str, value: object) -> tuple[str, ...]:
        items = (value,) if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise InvalidRequestError(f"{name} must be a string or a list of strings", param=name)
        if len(items) > self.max_items:
            raise InvalidRequestError(f"{name} takes at most {self.max_items} strings, not {len(items)}", param=name)
        for item in items:
            if not 0 < len(item) <= self.max_chars:
                reason = f"{name}: each string must have 1 to {self.max_chars} characters, not {len(item)}"
                raise InvalidRequestError(reason, param=name)
            check_text(item, param=name)
        return tuple(items)

    def json_schema(self) -> Schema:
        item = {"type": "string", "minLength": 1, "maxLength": self.max_chars}
        return {"anyOf": [item, {"type": "array", "items": item, "maxItems": self.max_items}]}


@dataclass(frozen=True)
class TokenIds:
    """List of token ids without duplicates. `check_token_ids` compares them with the vocabulary later."""

    max_items: int
    min_items: int = 0

    def checked(self, name: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, (list, tuple)) or not all(type(item) is int for item in value):
            raise InvalidRequestError(f"{name} must be a list of token ids (integers)", param=name)
        if len(value) > self.max_items:
            raise InvalidRequestError(f"{name} takes at most {self.max_items} ids, not {len(value)}", param=name)
        if len(value) < self.min_items:
            raise InvalidRequestError(f"{name} is empty; leave it out or list at least one id", param=name)
        return tuple(dict.fromkeys(value))

    def json_schema(self) -> Schema:
        ids = {"type": "integer", "minimum": 0}
        return {"type": "array", "items": ids, "minItems": self.min_items, "maxItems": self.max_items}


@dataclass(frozen=True)
class TokenNumbers:
    """Numbers by token id. The keys of a JSON object are strings: only a plain decimal spelling is an id."""

    max_items: int
    number: Number

    def checked(self, name: str, value: object) -> dict[int, float]:
        if not isinstance(value, Mapping):
            raise InvalidRequestError(f"{name} must map token ids to numbers", param=name)
        if len(value) > self.max_items:
            raise InvalidRequestError(f"{name} takes at most {self.max_items} entries, not {len(value)}", param=name)
        return {_token_id(name, key): self.number.checked(name, number) for key, number in value.items()}

    def json_schema(self) -> Schema:
        return {
            "type": "object",
            "patternProperties": {"^[0-9]{1,20}$": self.number.json_schema()},
            "additionalProperties": False,
            "maxProperties": self.max_items,
        }


def _token_id(name: str, key: object) -> int:
    if type(key) is str and key.isascii() and key.isdigit() and len(key) <= 20:
        return int(key)
    if type(key) is not int:
        raise InvalidRequestError(f"{name}: {shown(key)} is not a token id", param=name)
    return key


@dataclass(frozen=True)
class LazyRule:
    """Rule that another room of the engine defines: class `name` of `module`, imported with the first value."""

    module: str
    name: str

    def checked(self, name: str, value: object) -> Any:
        return None if value is None else self._rule(name).checked(name, value)

    def json_schema(self) -> Schema:
        return self._rule(self.module).json_schema()

    def _rule(self, field_name: str) -> Rule:
        from .extension import importing_for  # here: the core is read without it

        with importing_for(field_name):
            rule: Rule = getattr(import_module(f"{__package__}.{self.module}"), self.name)()
        return rule
