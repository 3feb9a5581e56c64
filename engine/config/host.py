"""Host: cores and memory that this process may use, by the machine and by its container.

A container limits a process by its control groups, from its own up to the root, v1 and v2.

A quota of 1 CPU on 2 cores: 64.8 tokens/s with 2 threads, 115.2 with 1 (SmolLM2). Imports no torch.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_SELF = Path("/proc/self")
_NO_LIMIT = 2**62  # v1 has a number of pages that no machine has
# Files of a group: its limit, its use, and the beginning of names in memory.stat. First v2's, then v1's.
_MEMORY = (("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))


def may_have_gpu() -> bool:
    """True if a GPU's driver, or its device, is here."""
    devices = (Path("/dev", name) for name in ("nvidiactl", "kfd", "dxg"))
    return any(map(shutil.which, ("nvidia-smi", "rocm-smi"))) or any(device.exists() for device in devices)


def cpu_quota(process: Path = _SELF) -> float | None:
    """Return the number of cores whose time this process may use; None without a quota."""
    quotas = []
    for group in _groups("cpu", process):
        with contextlib.suppress(OSError, ValueError):  # the other version's file, or "max"
            quota, period = map(int, (group / "cpu.max").read_text("utf-8").split())
            quotas.append(quota / period)
        with contextlib.suppress(OSError, ValueError):
            quota, period = (int((group / f"cpu.cfs_{name}_us").read_text("utf-8")) for name in ("quota", "period"))
            quotas += [quota / period] * (quota > 0)
    return min(quotas, default=None)


def memory_room(process: Path = _SELF) -> int | None:
    """Return the bytes that this process may still take; None without a limit. Cached files make room."""
    rooms = []
    for group in _groups("memory", process):
        for limit, usage, beginning in _MEMORY:
            with contextlib.suppress(OSError, ValueError):
                if (most := int((group / limit).read_text("utf-8"))) < _NO_LIMIT:
                    fields = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
                    cached = sum(int(fields.get(f"{beginning}{name}_file", 0)) for name in ("active", "inactive"))
                    rooms.append(max(0, most - int((group / usage).read_text("utf-8")) + cached))
    return min(rooms, default=None)


def _groups(controller: str, process: Path) -> Iterator[Path]:
    """Yield the folders of the process's groups with a controller, from its own up to the mounted root."""
    try:
        lines = [line.split(":", 2) for line in (process / "cgroup").read_text("utf-8", "surrogateescape").splitlines()]
        mounts = (process / "mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:  # no Linux
        return
    paths = {name: PurePosixPath(path) for _, names, path in lines for name in names.split(",")}  # "": v2
    for mount in mounts:
        (_, _, _, root, place, *_), (kind, _, options, *_) = map(str.split, mount.split(" - ", 1))
        name = {"cgroup2": "", "cgroup": controller}.get(kind)
        if name in paths and (not name or name in options.split(",")):
            path = paths[name]  # seen from another root if the container mounts its own group alone
            group = Path(place, path.relative_to(root) if path.is_relative_to(root) else "")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(place))


def num_usable_cores() -> int:
    """Return the number of cores that this process may run on, or the whole cores of its CPU quota if less."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return num_cores if quota is None else min(num_cores, max(1, int(quota)))


def default_num_threads() -> int:
    """Return OMP_NUM_THREADS if it is set, else the number of usable cores."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdigit() and int(setting) else num_usable_cores()


def available_memory() -> int:
    """Return the bytes of main memory that this process may still take: the machine's, or its container's if less."""
    available = _meminfo("MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    room = memory_room()
    return available if room is None else min(available, room)


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
