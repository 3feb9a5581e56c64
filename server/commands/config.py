"""`splitfuse config`: the settings in force and the source of each, as a table or as JSON. Secrets are not shown."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from ...engine.config.host import default_num_threads
from ...engine.config.named_models import default_model
from ...engine.formats.checkpoint import model_folder
from .setting_flags import SECTIONS, section_of
from .settings_sources import ALL_FIELDS, Resolved, Source

_HIDDEN = "(set, not shown)"
_LONGEST_VALUE = 40
# What decides a setting that is left open.
_DECIDING = {
    **dict.fromkeys(("device", "num_threads"), Source("machine")),
    **dict.fromkeys(("dtype", "max_model_len"), Source("model")),
    **dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "async_scheduling"), Source("device")),
}


def decided(resolved: Resolved) -> Resolved:
    """Decide open settings as a start on this machine does. Raises ConfigError."""
    from ...engine.execution.models.resolved_model import resolve  # imports torch

    settings, model = resolved.settings, resolved.settings.model or default_model()
    folder = model_folder(dataclasses.replace(settings, load_format="dummy"), model)
    found = resolve(settings, folder, for_streams=True).config
    facts = {name: getattr(found, name) for name in _DECIDING} | {
        "num_threads": settings.num_threads or default_num_threads()
    }
    return Resolved(dataclasses.replace(settings, **facts), {**_DECIDING, **resolved.sources})


def report(resolved: Resolved, *, as_json: bool) -> int:
    """Print the report."""
    values = _values(resolved)
    if as_json:
        print(json.dumps({name: _entry(values[name], _source(resolved, name)) for name in values}, indent=1))
    else:
        print("\n".join(_lines(resolved, values)))
    return 0


def _values(resolved: Resolved) -> dict[str, Any]:
    """Return the values by name. A value that may hold a key is replaced by a remark."""
    settings = resolved.settings
    hidden = {field.name for field in dataclasses.fields(settings) if not field.repr}
    values = {name: getattr(settings, name) for name in ALL_FIELDS}
    values |= {"model": settings.model or default_model(), "scheduling_policy": settings.queue_order}
    is_secret = {name: name in hidden and name in resolved.sources for name in values}
    return {name: _HIDDEN if is_secret[name] else value for name, value in values.items()}


def _source(resolved: Resolved, name: str) -> Source:
    return resolved.sources.get(name, Source())


def _entry(value: Any, source: Source) -> dict[str, Any]:
    return {"value": value, "source": source.kind, **({"place": source.place} if source.place else {})}


def _lines(resolved: Resolved, values: dict[str, Any]) -> Iterator[str]:
    width = max(map(len, values))
    for section in SECTIONS:
        yield f"{section}:"
        for name in (name for name in values if _section(name) == section):
            text, source = _value_text(values[name]), _source(resolved, name)
            yield f"  {name:<{width}}  {text:<{_LONGEST_VALUE}}  {source}".rstrip()
    yield "- = chosen at the start, by the model and the machine"


def _section(name: str) -> str:
    return "model" if name == "model" else section_of(name)


def _value_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | tuple) else str(value)
