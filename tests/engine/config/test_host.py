"""Threads follow the CPU quota, blocks of the cache the memory of the group, wherever on the way up a limit stands."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitfuse.engine.config import host
from splitfuse.engine.config.host import cpu_quota, memory_room

GIB = 2**30
V1 = "36 32 0:31 {root} {place} rw - cgroup cgroup rw,{controller}"
V2 = "36 32 0:31 {root} {place} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"


class Machine:
    """`/proc/self` and mounted groups in a folder of the test."""

    def __init__(self, folder: Path, *, version: int, own: str, root: str = "/") -> None:
        self.process = folder / "proc"
        self.process.mkdir()
        self._version, self._folder = version, folder
        line = V1 if version == 1 else V2
        mounts = [line.format(root=root, place=folder / name, controller=name) for name in ("cpu", "memory")]
        self.write("proc/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda rw\n" + "\n".join(mounts[: 3 - version]))
        self.write("proc/cgroup", f"4:cpu,cpuacct:{own}\n3:memory:{own}" if version == 1 else f"0::{own}")

    def write(self, name: str, text: object) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def limit_cpu(self, group: str, quota: int, period: int = 100_000) -> None:
        if self._version == 2:
            self.write(f"cpu/{group}/cpu.max", f"{quota if quota > 0 else 'max'} {period}")
        else:
            self.write(f"cpu/{group}/cpu.cfs_quota_us", quota)
            self.write(f"cpu/{group}/cpu.cfs_period_us", period)

    def limit_memory(self, group: str, limit: int | None, used: int, *, cached: int = 0) -> None:
        if self._version == 2:
            self.write(f"cpu/{group}/memory.max", "max" if limit is None else limit)
            self.write(f"cpu/{group}/memory.current", used)
            self.write(f"cpu/{group}/memory.stat", f"anon 5\nactive_file {cached}\ninactive_file 0")
        else:
            self.write(f"memory/{group}/memory.limit_in_bytes", 2**63 - 4096 if limit is None else limit)
            self.write(f"memory/{group}/memory.usage_in_bytes", used)
            self.write(
                f"memory/{group}/memory.stat", f"total_active_file 0\ntotal_inactive_file {cached}\nactive_file 9"
            )


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("limited", ["a/b", "a", ""])
def test_a_limit_anywhere_on_the_way_up_counts(version: int, limited: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, version=version, own="/a/b")
    for group in ("a/b", "a", ""):
        machine.limit_cpu(group, 150_000 if group == limited else -1)
        machine.limit_memory(group, 3 * GIB if group == limited else None, GIB)
    machine.limit_cpu("other", 10_000)
    machine.limit_memory("other", 1, 1)
    assert (cpu_quota(machine.process), memory_room(machine.process)) == (1.5, 2 * GIB)


def test_the_least_limit_counts_and_cached_files_make_room(version: int, tmp_path: Path) -> None:
    machine = Machine(tmp_path, version=version, own="/a/b")
    machine.limit_cpu("a", 400_000)
    machine.limit_cpu("a/b", 100_000, 50_000)
    machine.limit_memory("a", 8 * GIB, 8 * GIB, cached=3 * GIB)
    machine.limit_memory("a/b", 4 * GIB, 2 * GIB, cached=GIB // 2)
    assert (cpu_quota(machine.process), memory_room(machine.process)) == (2.0, 2.5 * GIB)


@pytest.mark.parametrize(("own", "group"), [("/docker/1", ""), ("/docker/1/unit", "unit"), ("/elsewhere", "")])
def test_a_container_that_mounts_its_own_group(version: int, own: str, group: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, version=version, own=own, root="/docker/1")
    machine.limit_cpu(group, 50_000)
    machine.limit_memory(group, GIB, GIB // 2)
    assert (cpu_quota(machine.process), memory_room(machine.process)) == (0.5, GIB // 2)


def test_no_limit_and_no_groups(version: int, tmp_path: Path) -> None:
    machine = Machine(tmp_path, version=version, own="/a")
    assert (cpu_quota(machine.process), memory_room(machine.process)) == (None, None)
    machine.limit_cpu("a", -1)
    assert cpu_quota(machine.process) is None
    assert (cpu_quota(tmp_path / "nowhere"), memory_room(tmp_path / "nowhere")) == (None, None)


@pytest.mark.parametrize(("quota", "num_cores"), [(None, 8), (16.0, 8), (2.9, 2), (1.0, 1), (0.1, 1)])
def test_threads_are_the_whole_cores_of_the_quota(
    quota: float | None, num_cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(host, "cpu_quota", lambda: quota)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert host.num_usable_cores() == host.default_num_threads() == num_cores
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert host.default_num_threads() == 3


def test_memory_is_the_machines_or_the_groups_if_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory_room", lambda: None)
    assert host.available_memory() > 1000
    monkeypatch.setattr(host, "memory_room", lambda: 1000)
    assert host.available_memory() == 1000


@contextlib.contextmanager
def real_group() -> Iterator[Path]:
    """Make a group with a quota of one core in the kernel; skip where that is not allowed."""
    name = f"splitfuse-test-{os.getpid()}"
    quotas = {"/sys/fs/cgroup/cpu": ("cpu.cfs_quota_us", "100000"), "/sys/fs/cgroup": ("cpu.max", "100000 100000")}
    for place, (file, text) in quotas.items():
        group = Path(place, name)
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / file).exists():
                (group / file).write_text(text)
                yield group
                return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("needs to create a control group with a CPU quota")


def test_a_real_quota_is_seen() -> None:
    code = """
import os, sys
os.sched_setaffinity(0, range(os.cpu_count()))
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from splitfuse.engine.config.host import cpu_quota
from splitfuse.engine.config.host import default_num_threads
print(cpu_quota(), default_num_threads())
"""
    env = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    with real_group() as group:
        command = [sys.executable, "-c", code, str(group)]
        seen = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert seen == "1.0 1\n"
