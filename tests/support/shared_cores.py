"""NUM_WORKERS: number of test processes that share the cores. CpuWait: factor by which a busy machine slows work."""

import os
import subprocess
import sys

NUM_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# Works for 20 ms of CPU time five times a second; answers each line with the ratio of wall time to CPU time so far.
_PROGRAM = """
import select, sys, time
wall = cpu = 0.0
while True:
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    while time.process_time() < cpu_start + 0.02:
        pass
    wall, cpu = wall + time.perf_counter() - wall_start, cpu + time.process_time() - cpu_start
    if select.select([sys.stdin], [], [], 0.18)[0]:
        if not sys.stdin.readline():
            break
        print(wall / cpu, flush=True)
"""


class CpuWait:
    """Process that measures beside a test how long work waits for a core: the unit of limits in wall time."""

    def __enter__(self) -> "CpuWait":
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    @property
    def factor(self) -> float:
        """Mean wall time of a second of CPU time since the start, at least NUM_WORKERS. Blocks for about 20 ms."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return max(float(NUM_WORKERS), float(self._process.stdout.readline()))
