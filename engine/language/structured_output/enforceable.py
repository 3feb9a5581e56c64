"""Enforceable part of a JSON schema: a schema for the grammar, and the keywords left to be checked in the answer.

The grammar's schema allows every value that the whole schema allows, and as few others as possible. Keywords that
constrain nothing (unknown formats) are annotations and left out, by JSON Schema's own rule.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

from .relaxed_pattern import RelaxedPattern, any_pattern
from .schemas.dialect import by_keyword
from .schemas.document import TooManySchemasError
from .schemas.references import reference_cycles, schemas_in, target_of
from .schemas.static_schema import ALONE, LISTED, MAX_SCHEMAS, NAMED, StaticSchema, static_schema

Schema = dict[str, Any]

# Formats that llguidance knows. Seconds end at 59: a leap second is valid, but most libraries refuse it.
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
_SECONDS = {"time": r"^\d\d:\d\d:[0-5]", "date-time": r"[Tt]\d\d:\d\d:[0-5]"}
# Keywords that no grammar can enforce -> their values that constrain nothing.
_UNENFORCEABLE: Mapping[str, tuple[Any, ...]] = {
    "not": (False,),
    "uniqueItems": (False,),
    "contains": (),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
}
_HELPERS = ("then", "else", "minContains", "maxContains")  # keywords that only belong to keywords left out
_MAX_PATTERNS = 1000  # most patterns of a schema: 0.2 ms each
_MAX_COMPARED = 100  # branches that are compared in pairs
_MAX_MERGED = 10_000  # values: azure-pipelines' 259 branches, each with 300 values more, are "too large" to llguidance
_DEFINITIONS = ("$defs", "definitions")
_BESIDE = frozenset({*_DEFINITIONS, "x-guidance"})  # keywords that constrain nothing themselves
_CHOICES = ("allOf", "anyOf", "oneOf")
# Keywords whose schemas are for the same value as the schema that has them.
_APPLICATORS = frozenset({"$ref", *_CHOICES, "if", "dependentSchemas", "dependencies"})
# A quantifier may make the last character optional, so the character before one does not count.
_LITERAL_START = re.compile(r"^\^((?:[\w\- /:@]|\\[-/.$])+(?![*?{]))", re.ASCII)


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
    """Schema for the grammar, in its static form (static_schema.py), and the keywords it leaves out."""

    schema: Any  # an object or a bool, like the whole schema
    unenforced: tuple[Unenforced, ...]


def enforceable(schema: Schema | bool) -> Enforceable:
    """Return the enforceable part of a schema of any dialect. The compiler refuses values that are no schema.

    Raises RecursionError if the schema nests too deeply, TooManySchemasError.
    """
    try:
        static = static_schema(schema)
        relaxing = _Relaxing(static, _merged(static.schema))
        return Enforceable(relaxing.root(), tuple(relaxing.unenforced.values()))
    except (TypeError, AttributeError, ValueError):
        return Enforceable(schema, ())


@dataclass(frozen=True)
class _Relaxed:
    """Schema that is relaxed already."""

    schema: Any


@dataclass
class _Relaxing:
    static: StaticSchema
    merged: frozenset[str]  # references to schemas that are merged with others
    unenforced: dict[str, Unenforced] = field(default_factory=dict)
    num_schemas: int = 0
    _owner: str = "#"  # reference to the definition that is being relaxed
    _written_out: list[str] = field(default_factory=list)  # references whose targets stand around the current schema

    @cached_property
    def cycles(self) -> Mapping[str, int]:
        """Cycle of references by its number, by reference; schemas of one cycle reach each other."""
        return reference_cycles(self.static.schema)

    @cached_property
    def are_patterns_apart(self) -> bool:
        """True if no two patterns of property names in the whole schema overlap."""
        parts = [schema.get("patternProperties") for schema in schemas_in(self.static.schema)]
        return _are_apart({text for part in parts if isinstance(part, dict) for text in part})

    def root(self) -> Any:
        """Return the relaxed root, with its definitions."""
        root = self.static.schema
        result = self.relaxed(root, is_merged="#" in self.merged)
        for key in _DEFINITIONS:
            if isinstance(root, dict) and key in root:
                result[key] = {name: self._definition(f"#/{key}/{name}", part) for name, part in root[key].items()}
        return result

    def _definition(self, reference: str, schema: Any) -> Any:
        self._owner = reference
        return self.relaxed(schema, is_merged=reference in self.merged)

    def relaxed(self, schema: Any, *, is_merged: bool) -> Any:
        """Return the schema without the keywords that no grammar enforces.

        `is_merged`: other schemas are for the same value, and the compiler will merge them with this one.
        """
        self.num_schemas += 1
        if self.num_schemas > MAX_SCHEMAS:
            raise TooManySchemasError
        if not isinstance(schema, dict):
            return schema
        at = self.static.pointers.get(id(schema), "")
        result = {keyword: part for keyword, part in schema.items() if keyword not in _DEFINITIONS}
        if "if" in result:  # evaluates what it matches, and is left out
            for keyword in ("unevaluatedProperties", "unevaluatedItems"):
                if result.pop(keyword, True) not in (True, {}):
                    self._note(at, keyword)
        if not is_merged and not _APPLICATORS.isdisjoint(result):
            is_merged = _merges(result)
        if is_merged and self._is_in_cycle(result.get("$ref")):
            self._write_out(result, at)
        for keyword, change in _CHANGES.items():
            if keyword in result:
                change(self, result, at)
        for keyword, bound in _NUM_PROPERTIES.items():
            if keyword in result and (is_merged or not _APPLICATORS.isdisjoint(result) or not _needs_all(result)):
                self._leave_out_bound(result, at, keyword, bound)
        for keyword, harmless in _UNENFORCEABLE.items():
            if keyword in result and result.pop(keyword) not in harmless:
                self._note(at, keyword)
        result = {name: value for name, value in result.items() if name not in _HELPERS}
        result |= self._within(result, is_merged=is_merged)
        if "patternProperties" in result:
            self._pattern_properties(result, at, is_merged=is_merged)
        if isinstance(result.get("oneOf"), list):  # equal to anyOf if the branches exclude each other
            _also(result, {"anyOf": result.pop("oneOf")})
        if isinstance(result.get("anyOf"), list):
            self._bound_merging(result, at, "oneOf" if "oneOf" in schema else "anyOf")
        return result

    def _within(self, schema: Schema, *, is_merged: bool) -> Schema:
        """Return the relaxed schemas that this schema holds, by keyword."""
        result: Schema = {}
        for keyword, part in schema.items():
            if isinstance(part, dict) and keyword in NAMED:
                result[keyword] = {key: self.relaxed(value, is_merged=False) for key, value in part.items()}
            elif isinstance(part, list) and keyword in LISTED:
                is_for_same = is_merged and keyword in _CHOICES
                result[keyword] = [
                    value.schema if isinstance(value, _Relaxed) else self.relaxed(value, is_merged=is_for_same)
                    for value in part
                ]
            elif isinstance(part, dict) and keyword in ALONE:
                result[keyword] = self.relaxed(part, is_merged=False)
        return result

    def _is_in_cycle(self, reference: Any) -> bool:
        """Return True if the target of the reference leads back to the definition that has it."""
        number = self.cycles.get(reference) if isinstance(reference, str) else None
        return number is not None and number == self.cycles.get(self._owner)

    def _write_out(self, schema: Schema, at: str) -> None:
        """Replace a reference by its target: the compiler merges no reference within the target's own definition.

        A target within itself is left out.
        """
        reference = schema.pop("$ref")
        if reference in self._written_out:
            self._note(at, "$ref")
            return
        self._written_out.append(reference)
        target = self.relaxed(target_of(self.static.schema, {"$ref": reference}), is_merged=True)
        self._written_out.pop()
        schema["allOf"] = [*schema.get("allOf", ()), _Relaxed(target)]

    def _bound_merging(self, schema: Schema, at: str, keyword: str) -> None:
        """Leave out an anyOf if merging the rest of the schema into each of its branches would take too long."""
        branches = schema["anyOf"] = _with_one_enum(schema["anyOf"])
        rest = {name: part for name, part in schema.items() if name != "anyOf"}
        if rest and len(branches) * _size(rest, _MAX_MERGED // len(branches) + 1 if branches else 1) > _MAX_MERGED:
            del schema["anyOf"]
            self._note(at, keyword)

    def _note(self, at: str, keyword: str, *, is_checked: bool = True) -> None:
        self.unenforced[f"{at}/{keyword}"] = Unenforced(f"{at}/{keyword}", is_checked)

    def _leave_out_bound(self, schema: Schema, at: str, keyword: str, bound: "_Bound") -> None:
        if not bound(schema, schema.pop(keyword)):
            self._note(at, keyword)

    def _unevaluated_properties(self, schema: Schema, at: str) -> None:
        if _APPLICATORS.isdisjoint(schema):  # only this schema's own keywords evaluate properties
            schema.setdefault("additionalProperties", schema.pop("unevaluatedProperties"))

    def _unevaluated_items(self, schema: Schema, at: str) -> None:
        if _APPLICATORS.isdisjoint(schema) and "contains" not in schema:
            schema.setdefault("items", schema.pop("unevaluatedItems"))

    def _pattern_properties(self, schema: Schema, at: str, *, is_merged: bool) -> None:
        """Replace patterns that may overlap, or that no grammar has, by one pattern for the names of all.

        A schema that the compiler merges with others loses them, unless no two patterns of the whole schema overlap.
        """
        parts, more = schema["patternProperties"], schema.get("additionalProperties", True)
        if len(parts) > _MAX_PATTERNS:
            del schema["patternProperties"]
            schema.pop("additionalProperties", None)
            self._note(at, "patternProperties", is_checked=False)
            return
        patterns = [RelaxedPattern(text) for text in parts]
        is_exact = all(pattern.is_enforced and len(pattern.for_grammar) == 1 for pattern in patterns)
        if is_exact and (self.are_patterns_apart if is_merged else _are_apart(parts)):
            schema["patternProperties"] = {pattern.for_grammar[0]: parts[pattern.text] for pattern in patterns}
            return
        if is_merged:
            del schema["patternProperties"]
            if schema.pop("additionalProperties", True) not in (True, {}):
                self._note(at, "additionalProperties")
            merged = None
        else:
            others = [] if is_exact else [more, True] if schema.get("properties") else [more]
            merged = _any_of([*parts.values(), *others])
            schema["patternProperties"] = {any_pattern(patterns): merged}
        if not is_exact or any(part != merged for part in parts.values()):
            self._note(at, "patternProperties", is_checked=all(pattern.is_checked for pattern in patterns))

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
            [target_of(self.static.schema, branch) for branch in schema["oneOf"]]
        ):
            self._note(at, "oneOf")

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


_CHANGES: Mapping[str, Callable[[_Relaxing, Schema, str], None]] = by_keyword(
    _Relaxing, "pattern format uniqueItems if oneOf propertyNames unevaluatedProperties unevaluatedItems"
)
# Bounds on the number of properties -> if the rest of the schema implies the bound.
_Bound = Callable[[Schema, Any], bool]
_NUM_PROPERTIES: Mapping[str, _Bound] = {
    "minProperties": lambda schema, limit: type(limit) is int and limit <= len(schema.get("required", ())),
    "maxProperties": lambda schema, limit: (
        type(limit) is int
        and schema.get("additionalProperties") is False
        and not schema.get("patternProperties")
        and limit >= len(schema.get("properties", ()))
    ),
}


def _merged(root: Any) -> frozenset[str]:
    """Return the references to schemas that the compiler merges with others, for they are for one value."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [schema for schema in schemas_in(root) if not _APPLICATORS.isdisjoint(schema) and _merges(schema)]
    while waiting:
        schema = waiting.pop()
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        target = target_of(root, schema)
        if target is not schema and schema["$ref"] not in found:
            found.add(schema["$ref"])
            waiting.append(target)
        for keyword in _CHOICES:
            waiting += [part for part in schema.get(keyword, ()) if isinstance(part, dict)]
    return frozenset(found)


def _merges(schema: Schema) -> bool:
    """Return True if more than one part of the schema is for its value."""
    return len(schema.keys() - _BESIDE) > 1 or len(schema.get("allOf", ())) > 1


def _needs_all(schema: Schema) -> bool:
    """Return True if every declared property is required: then the compiler can count properties."""
    return set(schema.get("properties", ())) <= set(schema.get("required", ()))


def _are_apart(patterns: Collection[str]) -> bool:
    """Return True if clearly no text matches two of these patterns, which begin with different texts."""
    if len(patterns) < 2:
        return True
    starts = sorted(_start(pattern) for pattern in patterns)
    return "" not in starts and not any(later.startswith(first) for first, later in pairwise(starts))


def _start(pattern: str) -> str:
    """Return the text with which every match begins, at the start of the text; "" if there is none."""
    match = _LITERAL_START.match(pattern)
    return "" if match is None or "|" in pattern else match[1].replace("\\", "")


def _size(value: Any, limit: int) -> int:
    """Return the number of values within a value, counted up to about the limit."""
    num_values = 0
    waiting = [value]
    while waiting and num_values < limit:
        part = waiting.pop()
        num_values += 1
        if isinstance(part, (dict, list)):
            waiting += part.values() if isinstance(part, dict) else part
    return num_values + len(waiting)


def _with_one_enum(branches: list[Any]) -> list[Any]:
    """Return the branches of an anyOf with one for all lists of values: the compiler's time grows with the number."""
    lists = [branch["enum"] for branch in branches if isinstance(branch, dict) and branch.keys() == {"enum"}]
    if len(lists) < 2 or not all(isinstance(values, list) for values in lists):
        return branches
    others = [branch for branch in branches if not isinstance(branch, dict) or branch.keys() != {"enum"}]
    return [{"enum": [value for values in lists for value in values]}, *others]


def _any_of(schemas: list[Any]) -> Any:
    """Return a schema of all values that one of these schemas allows."""
    distinct = schemas
    if len(schemas) <= _MAX_COMPARED:
        distinct = [schema for number, schema in enumerate(schemas) if schema not in schemas[:number]]
    if any(schema is True or schema == {} for schema in distinct):
        return True
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _also(schema: Schema, more: Schema) -> None:
    """Add a requirement to the schema."""
    if schema.keys().isdisjoint(more):
        schema |= more
    else:
        schema["allOf"] = [*schema.get("allOf", ()), more]


def _exclude_each_other(branches: list[Any]) -> bool:
    """Return True if clearly no value can match two branches."""
    values = [_values(branch) for branch in branches]
    known = [found for found in values if found is not None]
    if len(known) == len(branches):
        return len(frozenset().union(*known)) == sum(map(len, known))
    if len(branches) > _MAX_COMPARED or not all(isinstance(branch, dict) for branch in branches):
        return False
    facts = [_Facts.of(branch) for branch in branches]
    return all(_are_disjoint(*pair) for pair in combinations(facts, 2))


@dataclass(frozen=True)
class _Facts:
    """Facts of a branch that show if another one excludes it."""

    types: frozenset[str]
    values: frozenset[str] | None
    tags: Mapping[str, frozenset[str]]  # values of required properties, by name

    @classmethod
    def of(cls, schema: Schema) -> "_Facts":
        properties = schema.get("properties") or {}
        tags = {name: _values(properties.get(name)) for name in schema.get("required", ())}
        known = {name: values for name, values in tags.items() if values is not None}
        return cls(_types(schema), _values(schema), known)


def _are_disjoint(a: _Facts, b: _Facts) -> bool:
    """Return True if their types, their values, or the values of a property that both require are disjoint."""
    if a.types.isdisjoint(b.types):
        return True
    if a.values is not None and b.values is not None:
        return a.values.isdisjoint(b.values)
    if a.types != {"object"} or b.types != {"object"}:
        return False
    return any(a.tags[name].isdisjoint(b.tags[name]) for name in a.tags.keys() & b.tags.keys())


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
