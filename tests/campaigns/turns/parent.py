"""Parent: the process of `serve A B C`, its models' processes, and the kills of both."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from served import Served

END_S = 15.0  # from the parent's death to the last of its models' processes


class Parent:
    """Process that holds the port, started again on the same port after its death. `folder` takes temporary files."""

    def __init__(self, flags: Sequence[str], folder: Path) -> None:
        self.faults: list[str] = []
        self._flags = flags
        self._env = {"TMPDIR": str(folder), "SPLITFUSE_RUNTIME_DIR": str(folder / "runtime")}
        self._folder = folder
        self._served = Served(*flags, env=self._env).until_ready()

    @property
    def url(self) -> str:
        """Its address, the same for every life."""
        return self._served.url

    @property
    def log(self) -> str:
        """Text of stderr of this life."""
        return self._served.log

    @property
    def models(self) -> list[int]:
        """Ids of the models' processes."""
        found = []
        with contextlib.suppress(OSError):  # one ends meanwhile
            for path in Path(f"/proc/{self._served.process.pid}/task").glob("*/children"):
                found += [int(pid) for pid in path.read_text().split()]
        return [pid for pid in found if _is_server(pid)]

    @property
    def rss_mb(self) -> float:
        """MiB of private memory."""
        return self._served.usage().rss_mb

    def kill_model(self, pid: int) -> None:
        """Send kill -9 to a model's process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """Send kill -9 to the parent and start it again; note what its death left over."""
        models, port = self.models, self._served.port
        self._served.__exit__()
        self._served = Served(*self._flags, env=self._env, port=port).until_ready()
        deadline = time.monotonic() + END_S
        while (left := [pid for pid in models if _is_server(pid)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            self.faults.append(f"{len(left)} processes of models outlive their parent by {END_S:g} s")
        self._check_folders(num_most=1)

    def close(self) -> None:
        """End it as an operator does; nothing may be left over."""
        self._served.signal(signal.SIGTERM)
        if (code := self._served.wait(120.0)) != 0:
            self.faults.append(f"exit code {code} after SIGTERM")
        self._served.__exit__()
        self._check_folders(num_most=0)

    def _check_folders(self, *, num_most: int) -> None:
        folders = [path for path in self._folder.glob("splitfuse-*") if path.name != f"splitfuse-{os.getuid()}"]
        if len(folders) > num_most:
            self.faults.append(f"temporary folders are left: {[path.name for path in folders]}")


def _is_server(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"splitfuse.server\0serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
