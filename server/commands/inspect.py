"""`splitfuse inspect`: says what a file or a name on the hub is, before it is loaded or fetched whole."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from ...engine.config import EngineConfig
from ...engine.config.short_names import hub_name
from ...engine.errors import ConfigError, SplitfuseError
from ...engine.execution.models.registry import MODELS
from ...engine.formats.checkpoint import local_model, model_folder
from .plan import size_text

_HEAD_BYTES = (2 * 2**20, 32 * 2**20)  # sizes of headers, which hold the vocabulary


def inspect(model: str, *, as_json: bool) -> int:
    """Print the facts; 1 if the model is not served. Raises ConfigError if there is no such model."""
    with _headers(model) as path:
        facts = _gguf_facts(path) if path.is_file() else _folder_facts(path)
        facts = {"model": model, **facts, **_served(path)}
    if as_json:
        print(json.dumps(facts, indent=1, ensure_ascii=False, default=str))
    else:
        for name, value in facts.items():
            print(f"  {name.replace('_', ' '):<14} {_shown(value)}")
    return 0 if facts["served"] else 1


@contextmanager
def _headers(model: str) -> Iterator[Path]:
    """Yield the folder or file; for a GGUF on the hub a sparse file that holds its header alone."""
    if (local := local_model(model)) is not None:
        yield local
        return
    from ...engine.formats.gguf_files import gguf_files

    hub_id, _, part = hub_name(model).partition(":")
    try:
        names = gguf_files(hub_id, part)
    except SplitfuseError:
        raise
    except Exception as exc:  # the hub's client raises many types, and all mean "not available"
        raise ConfigError(f"{model} cannot be inspected: {str(exc).strip().partition(chr(10))[0]}") from exc
    if not names:
        yield model_folder(EngineConfig(model=model, load_format="dummy"), model)
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = [_sparse(hub_id, name, Path(folder) / Path(name).name) for name in names]
        yield paths[0]


def _sparse(hub_id: str, name: str, path: Path) -> Path:
    """Write a file of the hub's size with its first bytes: as many as its header needs."""
    import httpx
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    from ...engine.formats.gguf.file import header_ends

    for num_bytes in _HEAD_BYTES:
        headers = {**build_hf_headers(), "Range": f"bytes=0-{num_bytes - 1}"}
        answer = httpx.get(hf_hub_url(hub_id, name), headers=headers, follow_redirects=True, timeout=60)
        if answer.status_code not in (200, 206):
            raise ConfigError(f"{hub_id}:{name} cannot be inspected: the hub answers {answer.status_code}")
        total = int(answer.headers.get("Content-Range", "/0").rpartition("/")[2] or 0) or len(answer.content)
        path.write_bytes(answer.content)
        if header_ends(answer.content):
            break
    with path.open("r+b") as file:
        file.truncate(total)  # sparse: takes no room on the disk
    return path


def _gguf_facts(path: Path) -> dict[str, Any]:
    from ...engine.formats.gguf.file import Strings, read_gguf

    file = read_gguf(path)
    data, sizes = file.metadata, Counter[str]()
    for info in file.tensors.values():
        sizes[info.type.name] += info.num_bytes
    whole, name = sum(sizes.values()), str(data.get("general.architecture"))
    tokens, template = data.get("tokenizer.ggml.tokens"), data.get("tokenizer.chat_template")
    facts: dict[str, Any] = {
        "format": f"GGUF, {len(file.files)} parts" if file.parts else "GGUF",
        "name": str(data.get("general.name", "")),
        "architecture": name,
        "parameters": sum(prod(info.shape) for info in file.tensors.values()),
        "bytes": whole,
        "types": {kind: round(num_bytes / whole, 4) for kind, num_bytes in sizes.most_common()},
        "context_length": data.get(f"{name}.context_length"),
        "tokenizer": str(data.get("tokenizer.ggml.model")),
        "word_split": data.get("tokenizer.ggml.pre"),
        "vocabulary": len(tokens) if isinstance(tokens, Strings) else None,
        **_form(template if isinstance(template, str) else ""),
    }
    left_out = []
    if data.get(f"{name}.nextn_predict_layers"):
        left_out.append("layers that predict more than one token")
    if data.get(f"{name}.rope.dimension_sections") or list(path.parent.glob("*mmproj*")):
        left_out.append("images")
    return {**facts, "not_served": left_out}


def _folder_facts(folder: Path) -> dict[str, Any]:
    from ...engine.formats.folder_tokenizer import read_folder_tokenizer
    from ...engine.formats.json_file import read_json

    raw = read_json(folder / "config.json")
    quantization = raw.get("quantization_config") or {}
    try:
        templates = read_folder_tokenizer(folder).chat_templates
    except ConfigError:
        templates = {}
    return {
        "format": "safetensors",
        "architecture": str((raw.get("architectures") or ["none"])[0]),
        "types": str(quantization.get("quant_method") or raw.get("dtype") or raw.get("torch_dtype") or "as stored"),
        "context_length": (raw.get("text_config") or raw).get("max_position_embeddings"),
        **_form(templates.get("default", "")),
        "not_served": ["images"] if raw.get("vision_config") else [],
    }


def _form(template: str) -> dict[str, Any]:
    """Return the form of tool calls and thoughts that a chat template shows."""
    from ...engine.language.chat.chat_form import ChatForm

    if not template:
        return {"template": False, "tool_calls": None, "thoughts": None}
    try:
        form = ChatForm.derive(template)
        calls = form.render_calls([("NAME", {"KEY": "VALUE"})]) if form.has_calls else None
    except SplitfuseError as exc:
        return {"template": True, "tool_calls": f"not derived: {exc}", "thoughts": None}
    return {"template": True, "tool_calls": calls, "thoughts": form.has_reasoning}


def _served(path: Path) -> dict[str, Any]:
    """Return whether the model is served, by which family, and its memory; or the reason why not."""
    from ...engine.serving.memory_plan import expected_speed, plan_memory

    try:
        if path.is_file():
            from ...engine.formats.gguf.gguf_tokenizer import gguf_tokenizer

            gguf_tokenizer(path)
        found = plan_memory(EngineConfig(model=str(path)), path)
    except SplitfuseError as exc:
        return {"served": False, "why_not": str(exc).replace(f"{path}: ", "")}
    family, speed = MODELS.get(found.model.architecture), expected_speed(found)
    return {
        "served": True,
        "family": family.name if family else found.model.architecture,
        "memory": {"weights": size_text(found.weight_bytes), "token": size_text(found.token_bytes)},
        "fits": found.fits,
        "tokens_per_s": speed and float(f"{speed:.2g}"),  # of one request, expected
    }


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        shares = (f"{kind} {part:.1%}" if isinstance(part, float) else f"{kind} {part}" for kind, part in value.items())
        return ", ".join(shares)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value >= 10**6:
        return f"{value / 1e9:.3g} billion" if value >= 10**9 else f"{value / 1e6:.3g} million"
    text = ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)
    return text.replace("\n", "⏎") or "-"
