"""Lists of the models with their states, in the forms of OpenAI's, Anthropic's, Ollama's and llama.cpp's clients."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ... import package_version
from ...http.keys import digest
from .catalog import Entry
from .turns import READY, UNLOADED, UNLOADING, ModelTurn

_NEVER = "9999-12-31T23:59:59Z"
_STATES = {READY: "loaded"}
_LLAMA_CPPS = {READY: "loaded", UNLOADING: "loaded"}  # words of llama.cpp's router, which has no other for the latter


def openai_entries(entry: Entry, turn: ModelTurn, *, fault: str | None, created: float) -> list[dict[str, Any]]:
    """Describe a model, and its adapters once it has been loaded."""
    has_failed = fault is not None and turn.state == UNLOADED
    state = "failed" if has_failed else _STATES.get(turn.state, turn.state)
    status = {"value": _LLAMA_CPPS.get(turn.state, turn.state), "args": [], **({"failed": True} if has_failed else {})}
    about = {
        "state": state,
        "status": status,
        "num_running": turn.num_running,
        "num_waiting": len(turn.waiting),
        **({} if fault is None else {"fault": fault}),
    }
    plain = {"id": entry.name, "object": "model", "created": int(created), "owned_by": "splitfuse"}
    known: Sequence[Mapping[str, Any]] = entry.listed.get("openai") or [plain]
    return [{**plain, **described, **about} for described in known]


def anthropic_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a model in Anthropic's form, from the one of OpenAI."""
    limits = {name: entry["max_model_len"] for name in ("max_input_tokens", "max_tokens") if "max_model_len" in entry}
    about = {"type": "model", "id": entry["id"], "display_name": entry["id"], "lifecycle": "active"}
    return {**about, "created_at": timestamp(entry["created"]), "state": entry["state"], **limits}


def ollama_entry(entry: Entry, *, started: float) -> dict[str, Any]:
    """Describe a model of /api/tags; details of its files are known once it has been loaded."""
    known: Mapping[str, Any] = next(iter(entry.listed.get("ollama", ())), {})
    form = "safetensors" if str(entry.settings.model).rpartition(".")[2].lower() != "gguf" else "gguf"
    details = {"parent_model": "", "format": form, "family": "", "families": None}
    return {
        "name": entry.name,
        "model": entry.name,
        "modified_at": timestamp(started),
        "size": entry.num_bytes,
        "digest": digest(entry.name),
        "details": details | {"parameter_size": "", "quantization_level": ""},
        **{name: value for name, value in known.items() if name in ("size", "details")},
    }


def running_entry(entry: Entry, turn: ModelTurn, *, started: float, now: float) -> dict[str, Any]:
    """Describe a model of /api/ps. `now`: the clock of turns."""
    may_leave = not turn.is_pinned and turn.idle_s is not None
    last_used = now if turn.num_running else turn.last_used
    left_s = max(0.0, last_used + (turn.idle_s or 0.0) - now)
    known: Mapping[str, Any] = next(iter(entry.listed.get("ollama", ())), {})
    return {
        **ollama_entry(entry, started=started),
        "expires_at": timestamp(time.time() + left_s) if may_leave else _NEVER,
        "size_vram": known.get("size_vram", 0),
        "context_length": known.get("context_length", 0),
    }


def unloaded_answer(name: str, path: str) -> dict[str, Any]:
    """Answer a request of Ollama's API that unloads a model."""
    content = {"message": {"role": "assistant", "content": ""}} if path == "/api/chat" else {"response": ""}
    head = {"model": name, "created_at": timestamp(time.time())}
    return {**head, **content, "done": True, "done_reason": "unload"}


def idle_stats(name: str) -> dict[str, Any]:
    """Return the figures of /stats while no model is in memory."""
    return {"model": name, "version": package_version(), "state": "ready", "num_running": 0, "num_waiting": 0}


def timestamp(seconds: float) -> str:
    """Format a time in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
