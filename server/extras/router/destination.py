"""Destination: the model that a request is for, by an id in it, by the model's name, or the default one. No sockets."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from ....engine.errors import InvalidRequestError
from ...http.errors import ResultNotFoundError
from ...http.json_body import parse
from .catalog import Catalog, Entry

# Fields with an id of the model that must answer, and names of the field that has the model's name.
_ID_FIELDS = ("previous_response_id", "input_file_id", "seq_id")
_NAME_FIELDS = ("model", "name")
# Paths below which an id stands, and the id's kind in a 404.
_ID_PATH = re.compile(r"/(?:result|v1/(?P<kind>responses|files|batches))/[^/]")
_KINDS = {None: "result", "responses": "result", "files": "file", "batches": "batch"}
# Files of the pages and the documentation: any model's server has them.
_FILES = re.compile(r"/|/engine|/page/.*|/docs.*|/openapi\.json|/api/version")
_FIGURES = frozenset({"/stats", "/stats/stream"})
# Requests that a process may have carried out before it died, and that have no idempotency key.
_NOT_TWICE = re.compile(r"/(fork|weights|v1/files|v1/uploads|(un)?load_lora_adapter|v1/(un)?load_lora_adapter).*")
_TAKES_A_KEY = frozenset({"/generate", "/v1/batches"})
_DURATION = re.compile(r"([+-]?\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)?")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


class Destination(NamedTuple):
    """Model of a request, and what the request needs of it."""

    entry: Entry
    needs_turn: bool = True  # False: any server in memory answers, and no work is done
    may_repeat: bool = True  # False: a process that dies may have carried it out
    needs_key: bool = False  # a repetition needs an idempotency key


def fields_of(body: bytes) -> Mapping[str, Any]:
    """Return the fields of a body; {} without a body. Raises InvalidRequestError."""
    if not body:
        return {}
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse(body)  # says what is wrong, or reads what orjson does not
    return fields if isinstance(fields, dict) else parse(body)


def destination_of(
    catalog: Catalog, method: str, path: str, query: Mapping[str, str], fields: Mapping[str, Any]
) -> Destination:
    """Find the model. Raises ModelNotFoundError, ResultNotFoundError, InvalidRequestError."""
    entry = _by_id(catalog, path, fields) or _by_name(catalog, query, fields)
    if method in ("GET", "HEAD") and (path in _FIGURES or _FILES.fullmatch(path)):
        return Destination(entry, needs_turn=False)
    needs_key = method == "POST" and path in _TAKES_A_KEY and fields.get("stream") is not True
    return Destination(entry, may_repeat=_NOT_TWICE.fullmatch(path) is None, needs_key=needs_key)


def is_figures(path: str) -> bool:
    """True if the path shows the work of a server in memory, and is no reason to load a model."""
    return path in _FIGURES


def keep_alive_of(path: str, fields: Mapping[str, Any]) -> float | None:
    """Return the seconds of Ollama's keep_alive, infinite if it is negative; None without one, or if it is unreadable.

    Formats: 300, "300", "5m", "1h30m".
    """
    value = fields.get("keep_alive")
    if not path.startswith("/api/") or value is None or isinstance(value, bool):
        return None
    parts = _DURATION.findall(str(value))
    if not parts or "".join(number + unit for number, unit in parts) != str(value):
        return None
    seconds = sum(float(number) * _SECONDS[unit or None] for number, unit in parts)
    return float("inf") if seconds < 0 else seconds


def is_empty(path: str, fields: Mapping[str, Any]) -> bool:
    """True if a request of Ollama's API asks for no answer: it loads the model, or unloads it."""
    field = {"/api/generate": "prompt", "/api/chat": "messages"}.get(path)
    return field is not None and not fields.get(field)


def _by_id(catalog: Catalog, path: str, fields: Mapping[str, Any]) -> Entry | None:
    if (found := _ID_PATH.match(path)) is not None:
        if (owner := catalog.owner_in_path(path)) is None:
            raise ResultNotFoundError(_KINDS[found["kind"]])
        return owner
    owners = (catalog.owner_of(fields.get(name)) for name in _ID_FIELDS)
    return catalog.owner_in_path(path) or next((owner for owner in owners if owner is not None), None)


def _by_name(catalog: Catalog, query: Mapping[str, str], fields: Mapping[str, Any]) -> Entry:
    name = next((fields[field] for field in _NAME_FIELDS if fields.get(field) is not None), query.get("model"))
    if name is None:
        return catalog.default
    if not isinstance(name, str):
        raise InvalidRequestError("model must be a string", param="model")
    return catalog.named(name)
