"""Document: a schema with its resources and anchors, and the metaschemas of json-schema.org: the targets of references.

No other document is ever read: a reference to one has no target.
"""

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from .dialect import DRAFT_2019, dialect_of, identifier


def escaped(key: str) -> str:
    """Escape a key for a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def unescaped(key: str) -> str:
    """Return the key that a part of a JSON pointer names."""
    return key.replace("~1", "/").replace("~0", "~")


_METASCHEMA = re.compile(r"^https?://json-schema\.org/draft(?:-0(\d)/schema|/(20\d\d)-\d\d/((?:meta/)?[a-z-]+))$")
_MAX_KEYS = 200  # most keys of a pointer
_MAX_DYNAMIC = 100  # dynamic anchors: every definition is written out for each scope of them
_DECLARING = ("$schema", "$id", "id")
_IDENTIFYING = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
_NO_ANCHORS: dict[str, "Place"] = {}
_FOLDERS = {"2019": "201909", "2020": "202012"}  # the package's, by the year of a draft
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items", "type", "extends", "disallow")
_ALONE = (
    *("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains"),
    *("propertyNames", "not", "if", "then", "else", "extends"),
)


class TooManySchemasError(Exception):
    """Error of a schema that holds too many schemas or anchors, once they are written out."""

    def __init__(self) -> None:
        super().__init__("the schema holds too many schemas, with its references written out; make it smaller")


@dataclass(frozen=True)
class Place:
    """Place of a schema: its value, and all that its references depend on."""

    value: Any
    pointer: str  # from the document's root; a metaschema's begins with its URI
    base: str  # URI of the resource
    dialect: int

    def at(self, *keys: str | int) -> "Place":
        """Return the place of a schema within this one. Raises KeyError, IndexError, TypeError."""
        value, pointer = self.value, self.pointer
        for key in keys:
            value = value[key]
            pointer += f"/{escaped(str(key))}"
        return Place(value, pointer, self.base, self.dialect).opened()

    def opened(self) -> "Place":
        """Return this place with the base and the dialect that the schema itself declares."""
        if not isinstance(self.value, dict) or self.value.keys().isdisjoint(_DECLARING):
            return self
        dialect = dialect_of(self.value, self.dialect)
        uri = identifier(self.value, dialect)
        if uri is None or uri.startswith("#"):
            return self if dialect == self.dialect else Place(self.value, self.pointer, self.base, dialect)
        return Place(self.value, self.pointer, urldefrag(_joined(self.base, uri))[0], dialect)


class Document:
    """One user's schema."""

    def __init__(self, schema: Any) -> None:
        self.root = Place(schema, "", "", dialect_of(schema)).opened()
        self._resources: dict[str, Place] = {}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._dynamic: dict[str, dict[str, Place]] = {}  # base -> anchors that a dynamic scope can replace
        self._targets: dict[tuple[str, str], Place | None] = {}  # by base and reference
        self._add(self.root)

    def resolve(self, reference: str, place: Place) -> Place | None:
        """Return the target of a reference that stands at this place; None if there is none."""
        key = (place.base, reference)
        if key not in self._targets:
            self._targets[key] = self._resolved(reference, place)
        return self._targets[key]

    def _resolved(self, reference: str, place: Place) -> Place | None:
        uri, fragment = urldefrag(_joined(place.base, reference))
        resource = self._resource(uri)
        if resource is None:
            return None
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((resource.base, fragment))
        try:
            return _follow(resource, fragment)
        except (KeyError, IndexError, TypeError, ValueError):
            return None

    def dynamic_anchors(self, base: str) -> dict[str, Place]:
        """Return the anchors of a resource that a dynamic scope can replace; "" is `$recursiveAnchor`'s."""
        return self._dynamic.get(base, _NO_ANCHORS)

    def _resource(self, uri: str) -> Place | None:
        if uri not in self._resources and (schema := _metaschema(uri)) is not None:
            self._add(Place(schema, f"{uri}#", uri, dialect_of(schema)).opened())
        return self._resources.get(uri)

    def _add(self, root: Place) -> None:
        """Index a document's resources and anchors."""
        self._resources.setdefault(root.base, root)
        waiting = [root]
        while waiting:
            place = waiting.pop()
            self._index(place)
            waiting += _within(place)

    def _index(self, place: Place) -> None:
        schema, base = place.value, place.base
        if schema.keys().isdisjoint(_IDENTIFYING):
            return
        uri = identifier(schema, place.dialect)
        if uri is not None and uri.startswith("#"):  # until draft 7 an anchor is a fragment of the id
            self._anchors.setdefault((base, uri[1:]), place)
        elif uri is not None:
            self._resources.setdefault(base, place)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._anchors.setdefault((base, schema[keyword]), place)
        if isinstance(schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(base, {}).setdefault(schema["$dynamicAnchor"], place)
        if schema.get("$recursiveAnchor") is True and place.dialect == DRAFT_2019:
            self._dynamic.setdefault(base, {}).setdefault("", place)
        if sum(map(len, self._dynamic.values())) > _MAX_DYNAMIC:
            raise TooManySchemasError


def _within(place: Place) -> Iterator[Place]:
    """Yield the places of the schemas that a schema holds."""
    schema = place.value
    for keyword in schema:
        part = schema[keyword]
        if isinstance(part, dict) and keyword in _ALONE:
            yield place.at(keyword)
        elif isinstance(part, dict) and keyword in _NAMED:
            yield from (place.at(keyword, name) for name in part if isinstance(part[name], dict))
        elif isinstance(part, list) and keyword in _LISTED:
            yield from (place.at(keyword, number) for number, item in enumerate(part) if isinstance(item, dict))


def _follow(place: Place, pointer: str) -> Place:
    keys = pointer.split("/")[1:]
    if len(keys) > _MAX_KEYS:
        raise ValueError
    for key in map(unescaped, keys):
        place = place.at(int(key) if isinstance(place.value, list) else key)
    return place


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#") and "#" not in base:  # also if the base is a URN, which has no relative references
        return base + reference
    return urljoin(base, reference)


@cache
def _metaschema(uri: str) -> Any:
    """Return a metaschema of json-schema.org, from the package jsonschema-specifications; None if there is none."""
    match = _METASCHEMA.match(uri)
    found = importlib.util.find_spec("jsonschema_specifications") if match else None
    if match is None or found is None or not found.submodule_search_locations:
        return None
    draft, year, name = match.groups()
    folder = Path(found.submodule_search_locations[0], "schemas", f"draft{draft or _FOLDERS.get(year)}")
    path = folder / ("metaschema.json" if name in (None, "schema") else f"vocabularies/{name.removeprefix('meta/')}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return None
