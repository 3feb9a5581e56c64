"""Processor: its name, and its instructions that make kernels fast."""

import platform
from pathlib import Path

from .finding import Finding, remark

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
        lines = cpuinfo.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
