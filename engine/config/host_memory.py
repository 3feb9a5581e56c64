"""Free main memory of this machine or container. Imports no torch."""

import os
from pathlib import Path

from .cgroups import memory_room


def available_memory() -> int:
    """Return the bytes of main memory that this process may still take: the machine's, or its container's if less."""
    available = _meminfo("MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    room = memory_room()
    return available if room is None else min(available, room)


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
