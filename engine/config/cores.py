"""Number of usable CPU cores and of threads by default. Imports no torch."""

import os

from .cgroups import cpu_quota


def num_usable_cores() -> int:
    """Return the number of cores that this process may run on, or the whole cores of its CPU quota if less."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return num_cores if quota is None else min(num_cores, max(1, int(quota)))


def default_num_threads() -> int:
    """Return OMP_NUM_THREADS if it is set, else the number of usable cores."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdigit() and int(setting) else num_usable_cores()
