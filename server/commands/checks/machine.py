"""Machine: the processor with its fast instructions, caches with their sizes, and the free disk below them."""

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from .finding import Finding, remark

_LEAST_FREE = 5 * 2**30  # a model of 2 B parameters, and the files unpacked beside it
_CPUINFO = Path("/proc/cpuinfo")
# Name for people, and flags of /proc/cpuinfo, any of which is enough.
_FEATURES = {
    "AMX": ("amx_tile",),
    "VNNI": ("avx512_vnni", "avx_vnni"),
    "bf16": ("amx_bf16", "avx512_bf16", "bf16"),
    "AVX-512": ("avx512f",),
    "AVX2": ("avx2",),
    "i8mm": ("i8mm",),
    "NEON": ("asimd",),
}
_SLOW = "; neither AVX2 nor NEON, so this processor is slow"


def hub_folder() -> Path:
    """Return the folder in which huggingface_hub keeps models, without importing that package."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or Path(home, "hub"))


def cache(name: str, folder: Path) -> Finding:
    """Report a cache's place and size."""
    if not folder.exists():
        return Finding(name, f"{folder}, empty")
    return Finding(name, f"{folder}, {_size_text(sum(_sizes(folder)))}")


def disk(folder: Path) -> Finding:
    """Report the free disk where models are kept."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    text = f"{_size_text(free)} free at {place}"
    return Finding("disk", text) if free >= _LEAST_FREE else remark("disk", text, fix="free some, or set HF_HOME")


def _sizes(folder: Path) -> Iterator[int]:
    """Yield the sizes of files; links, which snapshots have, count nothing."""
    for place, _, names in os.walk(folder):
        yield from (os.lstat(os.path.join(place, name)).st_size for name in names)


def _size_text(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def processor(cpuinfo: Path = _CPUINFO) -> Finding:
    """Report the processor."""
    fields = _fields(cpuinfo)
    name = fields.get("model name") or platform.processor() or platform.machine()
    flags = {*fields.get("flags", "").split(), *fields.get("Features", "").split()}
    if not flags:
        return remark("processor", f"{name}; its instructions are unknown")
    found = [feature for feature, names in _FEATURES.items() if flags & {*names}]
    text = f"{name}: {', '.join(found)}" if found else name
    return Finding("processor", text) if {"AVX2", "NEON"} & {*found} else remark("processor", text + _SLOW)


def _fields(cpuinfo: Path) -> dict[str, str]:
    """Return the fields of the first processor."""
    try:
        lines = cpuinfo.read_text("utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
