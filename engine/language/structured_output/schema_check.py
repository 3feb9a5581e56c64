"""Schema errors: check of a finished answer by the keywords of its JSON schema that no grammar enforces.

The keywords of JSON Schema 2020-12 without annotations; a schema of another dialect comes in its static form. Work is
bounded: a schema can be written so that its check takes years.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from ...formats.linear_pattern import linear_pattern
from .relaxed_pattern import RelaxedPattern
from .schemas.dialect import by_keyword
from .schemas.document import escaped, unescaped

# Schemas applied to a value: 0.2 s at most. jsonschema-rs has no such limit and holds the GIL: 26 levels of
# {"oneOf": [next, next]}, in 2 KB, take it 1.1 s, and every level doubles that.
MAX_STEPS = 10_000
_UNICODE_STEPS = 100  # to compile one class such as \w: 2.3 ms
_CHARS_PER_STEP = 10  # to read a pattern
MAX_ERRORS = 8
_REPEATED = re.compile(r"(\\[pP]\{\w+\}|\\.|.)(?:\{(\d+)(?:,(\d*))?\})?", re.DOTALL)

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and value % 1 == 0,
}
_BOUNDS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any, Any], bool]]] = {
    "minimum": (lambda value: value if _is_number(value) else None, lambda a, b: a >= b),
    "maximum": (lambda value: value if _is_number(value) else None, lambda a, b: a <= b),
    "exclusiveMinimum": (lambda value: value if _is_number(value) else None, lambda a, b: a > b),
    "exclusiveMaximum": (lambda value: value if _is_number(value) else None, lambda a, b: a < b),
    "minLength": (lambda value: len(value) if isinstance(value, str) else None, lambda a, b: a >= b),
    "maxLength": (lambda value: len(value) if isinstance(value, str) else None, lambda a, b: a <= b),
    "minItems": (lambda value: len(value) if isinstance(value, list) else None, lambda a, b: a >= b),
    "maxItems": (lambda value: len(value) if isinstance(value, list) else None, lambda a, b: a <= b),
    "minProperties": (lambda value: len(value) if isinstance(value, dict) else None, lambda a, b: a >= b),
    "maxProperties": (lambda value: len(value) if isinstance(value, dict) else None, lambda a, b: a <= b),
}


@dataclass(frozen=True)
class SchemaError:
    """A place in the answer, as a JSON pointer, and the keyword that it breaks."""

    path: str
    keyword: str


class CannotCheckError(Exception):
    """The check takes too much work, or the schema is not one."""


def schema_errors(schema: Any, text: str) -> list[SchemaError]:
    """Return the errors of a JSON text against the schema, at most MAX_ERRORS; a text that is no JSON has one at "".

    Raises CannotCheckError.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the text was cut
        return [SchemaError("", "json")]
    errors: list[SchemaError] = []
    try:
        for error in _Check(schema).errors(value, schema, ""):
            errors.append(error)
            if len(errors) == MAX_ERRORS:
                break
    except (RecursionError, TypeError, AttributeError, KeyError, IndexError, ValueError) as exc:
        raise CannotCheckError from exc
    return errors


@dataclass
class _Check:
    root: Any
    num_steps: int = 0
    _matchers: dict[str, Callable[[str], bool]] = field(default_factory=dict)
    _patterns: dict[str, RelaxedPattern] = field(default_factory=dict)

    def errors(self, value: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        """Yield the errors of the value."""
        self._spend(1)
        if schema is False:
            yield SchemaError(at, "false")
        if not isinstance(schema, dict):
            return
        for keyword, argument in schema.items():
            if keyword in _BOUNDS:
                size, holds = _BOUNDS[keyword]
                if (measured := size(value)) is not None and _is_number(argument) and not holds(measured, argument):
                    yield SchemaError(at, keyword)
            elif (test := _TESTS.get(keyword)) is not None and not test(self, value, argument, schema):
                yield SchemaError(at, keyword)
            elif (walk := _WALKS.get(keyword)) is not None:
                yield from walk(self, value, argument, schema, at)

    def matches(self, value: Any, schema: Any) -> bool:
        """True if the value has no error."""
        return next(self.errors(value, schema, ""), None) is None

    def _spend(self, num_steps: int) -> None:
        self.num_steps += num_steps
        if self.num_steps > MAX_STEPS:
            raise CannotCheckError

    def _type(self, value: Any, types: Any, schema: Any) -> bool:
        listed = [types] if isinstance(types, str) else types
        return any(name not in _TYPES or _TYPES[name](value) for name in listed)

    def _enum(self, value: Any, values: Any, schema: Any) -> bool:
        self._spend(len(values))
        return _key(value) in map(_key, values)

    def _const(self, value: Any, only: Any, schema: Any) -> bool:
        return bool(_key(value) == _key(only))

    def _multiple_of(self, value: Any, factor: Any, schema: Any) -> bool:
        try:
            return not _is_number(value) or not Decimal(str(value)) % Decimal(str(factor))
        except InvalidOperation:  # more digits than Decimal takes
            return True

    def _pattern(self, value: Any, pattern: Any, schema: Any) -> bool:
        return not isinstance(value, str) or self._matches_pattern(pattern, value) is not False

    def _required(self, value: Any, names: Any, schema: Any) -> bool:
        return not isinstance(value, dict) or value.keys() >= set(names)

    def _unique_items(self, value: Any, is_asked: Any, schema: Any) -> bool:
        return not is_asked or not isinstance(value, list) or len(set(map(_key, value))) == len(value)

    def _any_of(self, value: Any, schemas: Any, schema: Any) -> bool:
        return any(self.matches(value, subschema) for subschema in schemas)

    def _one_of(self, value: Any, schemas: Any, schema: Any) -> bool:
        return sum(self.matches(value, subschema) for subschema in schemas) == 1

    def _not(self, value: Any, other: Any, schema: Any) -> bool:
        return not self.matches(value, other)

    def _contains(self, value: Any, wanted: Any, schema: Any) -> bool:
        if not isinstance(value, list):
            return True
        num_found = sum(self.matches(item, wanted) for item in value)
        return bool(schema.get("minContains", 1) <= num_found <= schema.get("maxContains", num_found))

    def _property_names(self, value: Any, names: Any, schema: Any) -> bool:
        return not isinstance(value, dict) or all(self.matches(name, names) for name in value)

    def _dependent_required(self, value: Any, names: Any, schema: Any) -> bool:
        return not isinstance(value, dict) or all(
            value.keys() >= ({needed} if isinstance(needed, str) else set(needed))
            for name, needed in names.items()
            if name in value and isinstance(needed, (list, str))
        )

    def _dependent_schemas(self, value: Any, schemas: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        for name, subschema in schemas.items():
            if isinstance(value, dict) and name in value and not isinstance(subschema, (list, str)):
                yield from self.errors(value, subschema, at)

    def _if(self, value: Any, condition: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        if "then" in schema or "else" in schema:
            branch = "then" if self.matches(value, condition) else "else"
            yield from self.errors(value, schema.get(branch, True), at)

    def _all_of(self, value: Any, schemas: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        for subschema in schemas:
            yield from self.errors(value, subschema, at)

    def _ref(self, value: Any, ref: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        yield from self.errors(value, self._target(ref), at)

    def _target(self, ref: str) -> Any:
        if not ref.startswith("#"):  # to another document
            raise CannotCheckError
        target = self.root
        for key in map(unescaped, ref[1:].split("/")[1:]):
            target = target[int(key)] if isinstance(target, list) else target[key]
        return target

    def _properties(self, value: Any, properties: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        for name, item in value.items() if isinstance(value, dict) else ():
            if name in properties:
                yield from self.errors(item, properties[name], f"{at}/{escaped(name)}")

    def _pattern_properties(self, value: Any, patterns: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        for name, item in value.items() if isinstance(value, dict) else ():
            for pattern, schema in patterns.items():
                if self._matches_pattern(pattern, name):
                    yield from self.errors(item, schema, f"{at}/{escaped(name)}")

    def _additional(self, value: Any, other: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        declared, patterns = schema.get("properties", ()), schema.get("patternProperties", ())
        for name, item in value.items() if isinstance(value, dict) else ():
            if name not in declared and all(self._matches_pattern(pattern, name) is False for pattern in patterns):
                yield from self.errors(item, other, f"{at}/{escaped(name)}")

    def _items(self, value: Any, items: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        first = 0 if isinstance(items, list) else len(schema.get("prefixItems", ()))
        for number, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(items, list) and number < len(items):
                yield from self.errors(item, items[number], f"{at}/{number}")
            elif not isinstance(items, list) and number >= first:
                yield from self.errors(item, items, f"{at}/{number}")

    def _unevaluated_properties(self, value: Any, other: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        if isinstance(value, dict) and other is not True:
            rest = value.keys() - self._evaluated_names(value, {**schema, "unevaluatedProperties": None})
            for name in sorted(rest):
                yield from self.errors(value[name], other, f"{at}/{escaped(name)}")

    def _evaluated_names(self, value: dict[str, Any], schema: Any) -> set[str]:
        """Return the names of the properties that the schema, or one for the same value, evaluates."""
        self._spend(1)
        if not isinstance(schema, dict):
            return set()
        if "additionalProperties" in schema or schema.get("unevaluatedProperties") is not None:
            return set(value)
        patterns = schema.get("patternProperties", ())
        names: set[str] = value.keys() & schema.get("properties", {}).keys()
        names |= {name for name in value if any(self._matches_pattern(p, name) is not False for p in patterns)}
        return names.union(*(self._evaluated_names(value, part) for part in self._applied(value, schema)))

    def _unevaluated_items(self, value: Any, other: Any, schema: Any, at: str) -> Iterator[SchemaError]:
        if isinstance(value, list) and other is not True:
            evaluated = self._evaluated_items(value, {**schema, "unevaluatedItems": None})
            for number, item in enumerate(value):
                if number not in evaluated:
                    yield from self.errors(item, other, f"{at}/{number}")

    def _evaluated_items(self, value: list[Any], schema: Any) -> set[int]:
        """Return the numbers of the items that the schema, or one for the same value, evaluates."""
        self._spend(1)
        if not isinstance(schema, dict):
            return set()
        if "items" in schema or schema.get("unevaluatedItems") is not None:
            return set(range(len(value)))
        numbers = set(range(len(schema.get("prefixItems", ()))))
        if "contains" in schema:
            numbers |= {number for number, item in enumerate(value) if self.matches(item, schema["contains"])}
        return numbers.union(*(self._evaluated_items(value, part) for part in self._applied(value, schema)))

    def _applied(self, value: Any, schema: dict[str, Any]) -> Iterator[Any]:
        """Yield the schemas within this one that are for the same value, and that it matches."""
        if "$ref" in schema:
            yield self._target(schema["$ref"])
        yield from schema.get("allOf", ())
        for keyword in ("anyOf", "oneOf"):
            yield from (part for part in schema.get(keyword, ()) if self.matches(value, part))
        for keyword in ("dependentSchemas", "dependencies"):
            if isinstance(value, dict):
                yield from (part for name, part in schema.get(keyword, {}).items() if name in value)
        if "if" in schema and self.matches(value, schema["if"]):
            yield from (schema["if"], schema.get("then", True))
        elif "if" in schema:
            yield schema.get("else", True)

    def _matches_pattern(self, pattern: str, text: str) -> bool | None:
        """Return True if the text matches the pattern, None if that cannot be known."""
        if pattern not in self._patterns:
            self._spend(len(pattern) // _CHARS_PER_STEP)
            self._patterns[pattern] = RelaxedPattern(pattern)
        relaxed = self._patterns[pattern]
        if not relaxed.is_checked:
            return None
        found = [self._found(part, text) for part in relaxed.required]
        return all(found) and not any(self._found(part, text) for part in relaxed.excluded)

    def _found(self, pattern: str, text: str) -> bool:
        if pattern not in self._matchers:
            self._spend(_steps(pattern))
            self._matchers[pattern] = _matcher(pattern)
        return self._matchers[pattern](text)


_TESTS: Mapping[str, Callable[[_Check, Any, Any, Any], bool]] = {
    **by_keyword(_Check, "type enum const multipleOf pattern required uniqueItems anyOf oneOf not contains"),
    **by_keyword(_Check, "propertyNames dependentRequired"),
    "dependencies": _Check._dependent_required,
}
_WALKS: Mapping[str, Callable[[_Check, Any, Any, Any, str], Iterator[SchemaError]]] = {
    **by_keyword(_Check, "dependentSchemas if allOf properties patternProperties items"),
    **by_keyword(_Check, "unevaluatedProperties unevaluatedItems"),
    "dependencies": _Check._dependent_schemas,  # draft 7: either
    "$ref": _Check._ref,
    "additionalProperties": _Check._additional,
    "prefixItems": _Check._items,
}


def _matcher(pattern: str) -> Callable[[str], bool]:
    """True if a text has a match. A pattern that the engine cannot read matches all."""
    try:
        return linear_pattern(pattern)
    except ValueError:
        return lambda text: True


def _steps(pattern: str) -> int:
    """Estimate the steps to compile a pattern: repetitions are written out, and nested ones multiply."""
    num_steps, factor = 0, 1
    for unit, least, most in _REPEATED.findall(pattern):
        count = max(int(least or 1), int(most or 1))
        if unit == ")":
            factor *= count
        num_steps += count * (_UNICODE_STEPS if re.match(r"\\[wWpPdDsS]", unit) else 1)
    has_classes = re.search(r"\[[^]]*\\[wWpP]", pattern)
    return num_steps * factor * (_UNICODE_STEPS if has_classes and "]{" in pattern else 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _key(value: Any) -> Any:
    """Return a key that is equal for values that JSON Schema calls equal: 1 and 1.0, not 1 and true."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return ("list", *map(_key, value))
    if isinstance(value, dict):
        return ("dict", frozenset((name, _key(schema)) for name, schema in value.items()))
    return value
