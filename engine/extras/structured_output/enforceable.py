"""Enforceable part of a JSON schema: a schema for the grammar, and the keywords left to be checked in the answer.

The grammar's schema allows every value that the whole schema allows, and as few others as possible. Keywords that
constrain nothing (unknown formats) are annotations and left out, by JSON Schema's own rule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .relaxed_pattern import RelaxedPattern

Schema = dict[str, Any]

# Formats that llguidance knows. Seconds end at 59: a leap second is valid, but most libraries refuse it.
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
_SECONDS = {"time": r"^\d\d:\d\d:[0-5]", "date-time": r"[Tt]\d\d:\d\d:[0-5]"}
# Keywords that hold schemas: under names, in a list, alone.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_ALONE = ("items", "additionalItems", "additionalProperties")
# Keywords that no grammar can enforce -> their values that constrain nothing.
_UNENFORCEABLE: Mapping[str, tuple[Any, ...]] = {
    "not": (False,),
    "uniqueItems": (False,),
    "contains": (),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
}
_HELPERS = ("then", "else", "minContains", "maxContains")  # keywords that only belong to keywords left out


@dataclass(frozen=True)
class Unenforced:
    """Keyword that the grammar leaves out, as a JSON pointer. `is_checked`: the finished answer is checked for it."""

    path: str
    is_checked: bool = True

    @property
    def keyword(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Enforceable:
    """Schema for the grammar, and the keywords it leaves out."""

    schema: Any  # an object or a bool, like the whole schema
    unenforced: tuple[Unenforced, ...]


def enforceable(schema: Schema | bool) -> Enforceable:
    """Return the enforceable part of a schema. Raises RecursionError if the schema nests too deeply."""
    relaxing = _Relaxing(schema)
    return Enforceable(relaxing.relaxed(schema, ""), tuple(relaxing.unenforced))


@dataclass
class _Relaxing:
    root: Schema | bool
    unenforced: list[Unenforced] = field(default_factory=list)

    def relaxed(self, schema: Any, at: str) -> Any:
        """Return the schema at this pointer without the keywords that no grammar enforces."""
        if not isinstance(schema, dict):
            return schema
        result = dict(schema)
        for keyword, change in _CHANGES.items():
            if keyword in result:
                change(self, result, at)
        for keyword, harmless in _UNENFORCEABLE.items():
            if keyword in result and result.pop(keyword) not in harmless:
                self._note(at, keyword)
        result = {name: value for name, value in result.items() if name not in _HELPERS} | self._within(result, at)
        if isinstance(result.get("oneOf"), list):  # equal to anyOf if the branches exclude each other
            _also(result, {"anyOf": result.pop("oneOf")})
        return result

    def _within(self, schema: Schema, at: str) -> Schema:
        """Return the relaxed schemas that this schema holds, by keyword."""
        result: Schema = {}
        for keyword in _NAMED:
            if isinstance(schema.get(keyword), dict):
                named = schema[keyword].items()
                result[keyword] = {key: self.relaxed(part, f"{at}/{keyword}/{escaped(key)}") for key, part in named}
        for keyword in _LISTED:
            if isinstance(schema.get(keyword), list):
                listed = enumerate(schema[keyword])
                result[keyword] = [self.relaxed(part, f"{at}/{keyword}/{number}") for number, part in listed]
        for keyword in _ALONE:
            if isinstance(schema.get(keyword), dict):
                result[keyword] = self.relaxed(schema[keyword], f"{at}/{keyword}")
        return result

    def _note(self, at: str, keyword: str, *, is_checked: bool = True) -> None:
        self.unenforced.append(Unenforced(f"{at}/{keyword}", is_checked))

    def _format(self, schema: Schema, at: str) -> None:
        if schema["format"] in _SECONDS and isinstance(schema["format"], str):
            _also(schema, {"pattern": _SECONDS[schema["format"]]})
        elif not isinstance(schema["format"], str) or schema["format"] not in _FORMATS:
            del schema["format"]

    def _pattern(self, schema: Schema, at: str) -> None:
        if not isinstance(schema["pattern"], str):
            return
        pattern = RelaxedPattern(schema.pop("pattern"))
        if not pattern.is_enforced:
            self._note(at, "pattern", is_checked=pattern.is_checked)
        for text in pattern.for_grammar:
            _also(schema, {"pattern": text})

    def _unique_items(self, schema: Schema, at: str) -> None:
        limit = schema.get("maxItems")
        if type(limit) is int and limit <= 1:
            del schema["uniqueItems"]

    def _if(self, schema: Schema, at: str) -> None:
        del schema["if"]
        if not schema.keys().isdisjoint(("then", "else")):
            self._note(at, "if")

    def _one_of(self, schema: Schema, at: str) -> None:
        if isinstance(schema["oneOf"], list) and not _exclude_each_other(
            [self._target(branch) for branch in schema["oneOf"]]
        ):
            self._note(at, "oneOf")

    def _target(self, schema: Any) -> Any:
        """Return the definition that a reference stands for, or the schema itself."""
        target = schema
        if isinstance(schema, dict) and str(schema.get("$ref")).startswith("#/"):
            target = self.root
            for key in schema["$ref"][2:].split("/"):
                target = target.get(key) if isinstance(target, dict) else None
        return target

    def _property_names(self, schema: Schema, at: str) -> None:
        names = schema.pop("propertyNames")
        rest = set(names) - {"type"} if isinstance(names, dict) else {""}
        property_keywords = [keyword for keyword in ("properties", "patternProperties") if schema.get(keyword)]
        more = schema.get("additionalProperties", True)
        if names is True or (not rest and names.get("type", "string") == "string"):
            return
        if rest == {"enum"} and not property_keywords and isinstance(names["enum"], list):
            schema |= {"properties": {str(name): more for name in names["enum"]}, "additionalProperties": False}
        elif rest == {"pattern"} and not property_keywords and RelaxedPattern(str(names["pattern"])).is_enforced:
            schema |= {"patternProperties": {names["pattern"]: more}, "additionalProperties": False}
        else:
            self._note(at, "propertyNames")


_CHANGES: Mapping[str, Callable[[_Relaxing, Schema, str], None]] = {
    "pattern": _Relaxing._pattern,
    "format": _Relaxing._format,
    "uniqueItems": _Relaxing._unique_items,
    "if": _Relaxing._if,
    "oneOf": _Relaxing._one_of,
    "propertyNames": _Relaxing._property_names,
}


def _also(schema: Schema, more: Schema) -> None:
    """Add a requirement to the schema."""
    if schema.keys().isdisjoint(more):
        schema |= more
    else:
        schema["allOf"] = [*schema.get("allOf", ()), more]


def _exclude_each_other(branches: list[Any]) -> bool:
    """Return True if clearly no value can match two branches."""
    pairs = [(a, b) for number, a in enumerate(branches) for b in branches[:number]]
    return all(isinstance(a, dict) and isinstance(b, dict) and _are_disjoint(a, b) for a, b in pairs)


def _are_disjoint(a: Schema, b: Schema) -> bool:
    """Return True if their types, their values, or the values of a property that both require are disjoint."""
    if _types(a).isdisjoint(_types(b)):
        return True
    if (first := _values(a)) is not None and (second := _values(b)) is not None:
        return first.isdisjoint(second)
    if _types(a) != {"object"} or _types(b) != {"object"}:
        return False
    shared = set(a.get("required", ())) & set(b.get("required", ()))
    properties = [schema.get("properties") or {} for schema in (a, b)]
    return any(
        (first := _values(properties[0].get(name))) is not None
        and (second := _values(properties[1].get(name))) is not None
        and first.isdisjoint(second)
        for name in shared
    )


def _types(schema: Schema) -> frozenset[str]:
    """Return the types that a schema allows; integers are numbers."""
    types = schema.get("type", ("null", "boolean", "object", "array", "number", "string"))
    listed = [types] if isinstance(types, str) else types
    return frozenset("number" if name == "integer" else str(name) for name in listed)


def _values(schema: Any) -> frozenset[str] | None:
    """Return the only values that a schema allows, if they are strings, else None."""
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        return frozenset(values)
    return None


def escaped(key: str) -> str:
    """Escape a key for a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
