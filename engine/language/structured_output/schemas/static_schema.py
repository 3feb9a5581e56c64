"""StaticSchema: a schema of any dialect as one of 2020-12 whose references are all `#` or `#/$defs/name`.

Only what references reach is walked, wherever it lies. `$dynamicRef` and `$recursiveRef` depend on the resources
through which a value came: a definition is written once for each such scope, so that every reference becomes static.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from .dialect import constraints
from .document import Document, Place, TooManySchemasError, escaped

MAX_SCHEMAS = 40_000  # a real schema of 1 MiB has 20,000; 20 us each
_OWN = re.compile(r"^/(\$defs|definitions)/([\w.-]+)$", re.ASCII)
_RENAMED = ("items", "additionalItems")  # keywords that dialect.py may rename
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
NAMED = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
ALONE = (
    *("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains", "propertyNames"),
    *("not", "if", "then", "else"),
)

_Scope = tuple[tuple[str, Place], ...]  # outermost place of each dynamic anchor, by its name


@dataclass(frozen=True)
class StaticSchema:
    """Schema without identifiers and annotations, and the JSON pointers to the schemas that its parts come from."""

    schema: Any
    pointers: Mapping[int, str] = field(repr=False)  # by the id of a part; a metaschema's begins with its URI


def static_schema(schema: Any) -> StaticSchema:
    """Return the static form. Raises RecursionError if the schema nests too deeply, TooManySchemasError.

    References without a target are left as they are.
    """
    writing = _Writing(Document(schema))
    return StaticSchema(writing.write(), writing.pointers)


@dataclass
class _Definition:
    key: str  # "$defs" or "definitions"
    name: str
    place: Place
    scope: _Scope


class _Writing:
    def __init__(self, document: Document) -> None:
        self.pointers: dict[int, str] = {}
        self._document = document
        self._root_scope = self._entered((), document.root)
        self._references = {_key(document.root, self._root_scope): "#"}
        self._taken = set(_names(document.root.value))
        self._waiting: deque[_Definition] = deque()
        self._num_schemas = 0

    def write(self) -> Any:
        """Return the root's static form, with the definitions that it needs."""
        result = self._write_schema(self._document.root, self._root_scope)
        while self._waiting:
            definition = self._waiting.popleft()
            written = self._write_schema(definition.place, definition.scope)
            result.setdefault(definition.key, {})[definition.name] = written
        return result

    def _write_schema(self, place: Place, scope: _Scope) -> Any:
        self._num_schemas += 1
        if self._num_schemas > MAX_SCHEMAS:
            raise TooManySchemasError
        schema = place.value
        if not isinstance(schema, dict):
            return schema
        scope = self._entered(scope, place)
        result = constraints(schema, place.dialect)
        for keyword, part in result.items():
            result[keyword] = self._within(keyword, part, place, scope)
        references = [self._reference(keyword, place, scope) for keyword in _REFERENCES if keyword in schema]
        if references:
            result["$ref"] = references[0]
        if more := [{"$ref": reference} for reference in references[1:]]:
            result["allOf"] = [*result.get("allOf", ()), *more]
        self.pointers[id(result)] = place.pointer
        return result

    def _within(self, keyword: str, part: Any, place: Place, scope: _Scope) -> Any:
        """Return the static form of a keyword's value."""
        source = next((name for name in (keyword, *_RENAMED) if place.value.get(name) is part), keyword)

        def write_part(value: Any, *keys: str | int) -> Any:
            pointer = "/".join([place.pointer, source, *(escaped(str(key)) for key in keys)])
            return self._write_schema(Place(value, pointer, place.base, place.dialect).opened(), scope)

        if isinstance(part, dict) and keyword in NAMED:
            return {name: write_part(value, name) for name, value in part.items()}
        if isinstance(part, list) and keyword in LISTED:
            return [write_part(value, number) for number, value in enumerate(part)]
        return write_part(part) if isinstance(part, dict) and keyword in ALONE else part

    def _reference(self, keyword: str, place: Place, scope: _Scope) -> Any:
        """Return the static reference for one that stands at this place."""
        text = place.value[keyword]
        target = self._document.resolve(text, place) if isinstance(text, str) else None
        if target is None:
            return text
        if keyword != "$ref":
            target = self._dynamic_target(target, keyword, text, scope)
        scope = self._entered(scope, target)
        key = _key(target, scope)
        if key not in self._references:
            definition = self._definition(target, scope)
            self._waiting.append(definition)
            self._references[key] = f"#/{definition.key}/{definition.name}"
        return self._references[key]

    def _dynamic_target(self, target: Place, keyword: str, text: str, scope: _Scope) -> Place:
        """Return the outermost place of the anchor in the scope, if the target is a place of a dynamic anchor."""
        name = "" if keyword == "$recursiveRef" else text.rpartition("#")[2]
        anchor = self._document.dynamic_anchors(target.base).get(name)
        return target if anchor is None or anchor.value is not target.value else dict(scope).get(name, target)

    def _definition(self, place: Place, scope: _Scope) -> _Definition:
        """Return the definition to write; the root's own ones keep their names."""
        in_root = _OWN.match(place.pointer)
        if in_root and scope == self._root_scope:
            return _Definition(in_root[1], in_root[2], place, scope)
        number = len(self._references)
        name = next(name for number in count(number) if (name := f"ref-{number}") not in self._taken)
        self._taken.add(name)
        return _Definition("$defs", name, place, scope)

    def _entered(self, scope: _Scope, place: Place) -> _Scope:
        """Return the scope within this place: its resource's dynamic anchors, unless an outer resource has them."""
        anchors = self._document.dynamic_anchors(place.base)
        if not anchors or anchors.keys() <= dict(scope).keys():
            return scope
        return tuple(sorted({**anchors, **dict(scope)}.items(), key=lambda item: item[0]))


def _key(place: Place, scope: _Scope) -> tuple[int, tuple[tuple[str, int], ...]]:
    return id(place.value), tuple((name, id(anchor.value)) for name, anchor in scope)


def _names(root: Any) -> Iterator[str]:
    """Yield the names of the root's definitions."""
    for key in ("$defs", "definitions"):
        part = root.get(key) if isinstance(root, dict) else None
        yield from part if isinstance(part, dict) else ()
