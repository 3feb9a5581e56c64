"""Files that hold one GGUF model: all parts of a split one, NAME-00001-of-00003.gguf, or files of a hub's repository.

The hub's are chosen by a name, a quantization, or the memory. Imports no torch.
"""

import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..config.host import available_memory
from ..errors import ConfigError

_log = logging.getLogger("splitfuse.engine")
_LIMIT_S = 2.0
_CACHE_SHARE = 1.2  # weights, a small KV cache and a step
_WIDE = re.compile(r"(?i)(^|[-._/])(f32|fp32|f16|fp16|bf16)([-._/]|$)")  # 16 and 32 bits: 8 are as good
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_MAX_PARTS = 999


def part_names(name: str) -> list[str]:
    """Return the names of all parts of the model that a file is part of; the name alone if it is no part's."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[3]) <= _MAX_PARTS:
        return [name]
    ending = name[len(match[1]) + 6 :]  # with the case of the suffix
    return [f"{match[1]}-{number:05d}{ending}" for number in range(1, int(match[3]) + 1)]


def parts_of(path: Path) -> list[Path]:
    """Return the paths of all parts. Raises ConfigError that names a missing one."""
    paths = [path.with_name(name) for name in part_names(path.name)]
    missing = [part.name for part in paths if not part.exists()] if len(paths) > 1 else []
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(f"{path} is one of {len(paths)} parts, and {missing[0]}{more} is missing; fetch it, too")
    return paths


def whole_models(names: Iterable[str]) -> list[str]:
    """Return the names without image encoders, importance matrices, and all parts but a model's first."""
    return [name for name in names if not is_beside(name) and part_names(Path(name).name)[0] == Path(name).name]


def is_beside(name: str) -> bool:
    """True if a file lies beside a model and is none: the encoder of images, or weights' importance."""
    return bool(re.search(r"(^|[-._])(mmproj|imatrix)([-._]|$)", Path(name).name.lower()))


def hub_fault() -> str | None:
    """Return why the hub cannot be asked, None if it answers: the hub's client tries for 24 s."""
    import httpx

    url = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    try:
        httpx.head(url, timeout=_LIMIT_S)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        return f"{url} does not answer ({' '.join(str(exc).split()) or type(exc).__name__})"
    return None


def gguf_files(hub_id: str, part: str, *, revision: str | None = None) -> list[str]:
    """Return the files to fetch, the parts of a split model in order; [] if a folder of safetensors is meant.

    `part`: FILE.gguf, a quantization such as Q4_K_M, or "". Raises ConfigError; the hub's client raises its own errors.
    """
    if part.lower().endswith(".gguf"):
        folder, name = Path(part).parent, Path(part).name
        return [str(folder / name) for name in part_names(name)]
    sizes = _sizes(hub_id, revision)
    if not part and "config.json" in sizes and any(name.endswith(".safetensors") for name in sizes):
        return []
    models = {name: sum(sizes.get(file, 0) for file in _parts(name)) for name in sizes_of_models(sizes)}
    if not models:
        if part:
            raise ConfigError(f"{hub_id} has no GGUF files; leave {part!r} out")
        return []
    return _parts(with_quantization(models, hub_id, part) if part else _best(models, hub_id))


def sizes_of_models(names: Mapping[str, int]) -> list[str]:
    """Return the names of the GGUF models, a split one's first part."""
    return whole_models(name for name in sorted(names) if name.lower().endswith(".gguf"))


def _parts(name: str) -> list[str]:
    folder = Path(name).parent
    return [str(folder / file) for file in part_names(Path(name).name)]


def with_quantization(models: Collection[str], hub_id: str, quantization: str) -> str:
    """Return the model whose name has this quantization; without Unsloth's prefix UD- if there are both.

    Raises ConfigError if no model has it, or several have.
    """
    wanted = re.compile(rf"(^|[-._/]){re.escape(quantization)}([-._/]|$)", re.IGNORECASE)
    found = [name for name in models if wanted.search(name)]
    plain = [name for name in found if not re.search(rf"UD-{re.escape(quantization)}", name, re.IGNORECASE)]
    found = plain or found
    if len(found) == 1:
        return found[0]
    names = ", ".join(found or models)
    why = f"has several files of {quantization!r}" if found else f"has no file of {quantization!r}"
    raise ConfigError(f"{hub_id} {why}; name one: {hub_id}:FILE, of {names}")


def _best(models: Mapping[str, int], hub_id: str) -> str:
    """Return the largest model that fits memory, of at most 8 bits if there is one, and say so."""
    free = available_memory()
    choices = [name for name in models if not _WIDE.search(name)] or [*models]
    fitting = [name for name in choices if models[name] * _CACHE_SHARE <= free]
    if not fitting:
        smallest = min(choices, key=models.__getitem__)
        raise ConfigError(
            f"{hub_id}: no GGUF file fits {free / 1e9:.1f} GB of memory; the smallest is {smallest}, "
            f"{models[smallest] / 1e9:.1f} GB; name a file to try it: {hub_id}:FILE"
        )
    best = max(fitting, key=models.__getitem__)
    _log.warning(
        "%s has %d GGUF models; %s (%.1f GB) is the largest that fits memory; for another: %s:FILE",
        *(hub_id, len(models), best, models[best] / 1e9, hub_id),
    )
    return best


def _sizes(hub_id: str, revision: str | None) -> dict[str, int]:
    """Return the sizes of the repository's files; of those in the cache if the hub is not reached."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        if fault := hub_fault():
            raise ConnectionError(fault)
        tree: Any = HfApi().list_repo_tree(hub_id, recursive=True, revision=revision)
        return {str(item.path): int(item.size) for item in tree if hasattr(item, "size")}
    except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception:
        cached = Path(constants.HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}" / "snapshots"
        folders = sorted(cached.glob(revision or "*"), key=lambda folder: folder.stat().st_mtime)
        if not folders:
            raise
        files = (path for path in folders[-1].rglob("*") if path.is_file())
        return {str(path.relative_to(folders[-1])): path.stat().st_size for path in files}
