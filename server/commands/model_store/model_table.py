"""`splitfuse models`: the models on this machine's disk, or the families that can be served, as a table or as JSON."""

import json
import textwrap
from collections.abc import Sequence

from ....engine.config.host import available_memory
from ....engine.config.short_names import SHORT_NAMES
from ....engine.execution.models.registry import MODELS
from ....engine.extension import has_extra, load_extra
from ....engine.formats.gguf.architectures import names_of_families
from .stored_model import StoredModel, stored_models

_CACHE_SHARE = 1.2  # weights, a small KV cache and a step; `splitfuse plan` computes the real number
_FORMATS = """Formats: safetensors, and GGUF where a name stands. GGUF files of Mistral 7B name llama, of DeepSeek V2
deepseek2; those of models with images are of the family's text alone. splitfuse plan MODEL reports what fits."""


def print_models(*, as_json: bool) -> int:
    """Print the models on disk, then the short names of others."""
    free = available_memory()
    models = stored_models()
    if as_json:
        print(json.dumps([_entry(model, free) for model in models], indent=1))
        return 0
    rows = [
        (model.name, megabytes(model.num_bytes), model.family, model.format, _verdict(model, free)) for model in models
    ]
    print(table(("MODEL", "SIZE", "FAMILY", "FORMAT", "FITS"), rows))
    names = {model.name for model in models}
    others = [
        (name, megabytes(known.num_bytes), known.description, "yes" if _fits(known.num_bytes, free) else "no")
        for name, known in SHORT_NAMES.items()
        if name not in names
    ]
    if others:
        print("\nNot here yet, `splitfuse pull MODEL` fetches it:")
        print(table(("MODEL", "SIZE", "CONTENT", "FITS"), others))
    return 0


def print_supported() -> int:
    """Print the families that can be served, and the GGUF architectures of each."""
    names = names_of_families()
    rows = [
        (family.name, architecture, ", ".join(names.get(architecture, ["-"])), family.example)
        for architecture, family in sorted(MODELS.items(), key=lambda item: item[1].name.lower())
    ]
    print(table(("FAMILY", "ARCHITECTURE", "GGUF", "FOR EXAMPLE"), rows))
    print(f"\n{_FORMATS}")
    if has_extra("transformers_impl"):
        print(f"\n{_through_transformers()}")
    return 0


def _through_transformers() -> str:
    """Return a paragraph about the families that transformers' modules serve and that have no native class."""
    tested = load_extra("transformers_impl", needed_for="models --supported").TESTED
    names = ", ".join(sorted(set(tested) - set(MODELS)))
    return textwrap.fill(f"Through transformers (--model-impl), slower; others where they fit. Tested: {names}.", 100)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text under a head, with columns as wide as their longest entry."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = (zip(row, widths, strict=True) for row in (head, *rows))
    return "\n".join("  ".join(f"{text:<{width}}" for text, width in line).rstrip() for line in lines)


def megabytes(num_bytes: int) -> str:
    """Format a size, like `98 MB`, in powers of ten like disks and the hub."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def _fits(num_bytes: int, free: int) -> bool:
    return num_bytes * _CACHE_SHARE <= free


def _verdict(model: StoredModel, free: int) -> str:
    if not model.is_served:
        return "-"
    return "yes" if _fits(model.num_bytes, free) else "no"


def _entry(model: StoredModel, free: int) -> dict[str, object]:
    return {
        "name": model.name,
        "hub_id": model.hub_id or None,
        "path": str(model.path),
        "bytes": model.num_bytes,
        "family": model.family if model.is_served else None,
        "format": model.format,
        "fits": model.is_served and _fits(model.num_bytes, free),
    }
