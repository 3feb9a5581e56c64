"""RuntimeFile: a small file per running server, by which `splitfuse ps` and `chat` find the servers of this user.

The folder is the user's own (mode 0700). A server removes its file at exit; readers remove files of dead processes, and
leave files of other programs alone (`engine/private_file.py`).
"""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...engine.errors import ConfigError
from ...engine.private_file import create_private, remove_own

RUNTIME_VARIABLE = "SPLITFUSE_RUNTIME_DIR"
_OWNER_ONLY = 0o700


@dataclass(frozen=True, kw_only=True)
class RuntimeFile:
    """Content of the file. `started` tells the process from a later one with the same id."""

    pid: int
    started: str
    host: str  # name in URLs on this machine
    port: int
    model: str
    scheme: str = "http"
    uds: str | None = None  # Unix socket in place of the port

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"{self.scheme}://{self.host}:{self.port}"


@contextlib.contextmanager
def announced(*, host: str, port: int, model: str, **more: Any) -> Iterator[None]:
    """Keep a file for this process during the block. Without a place to write there is none."""
    pid = os.getpid()
    entry = RuntimeFile(pid=pid, started=_started(pid), host=host, port=port, model=model, **more)
    text = json.dumps({"splitfuse": "server", **asdict(entry)}, separators=(",", ":"))
    path: Path | None = None
    with contextlib.suppress(OSError, ConfigError):
        folder = _folder()
        folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        if _is_ours(folder):
            path = folder / f"{entry.pid}.json"
            with open(create_private(path, setting="file of a server"), "w", encoding="utf-8") as file:
                file.write(text)
    try:
        yield
    finally:
        if path is not None:
            remove_own(path)


def running_servers() -> list[RuntimeFile]:
    """Return the files of servers that run, by port; files of dead ones are removed."""
    folder = _folder()
    if not _is_ours(folder):
        return []
    entries = [(path, _read(path)) for path in folder.glob("*.json")]
    for path, entry in entries:
        if entry is None or not _is_alive(entry):
            remove_own(path)
    alive = [entry for _, entry in entries if entry is not None and _is_alive(entry)]
    return sorted(alive, key=lambda entry: entry.port)


def only_server() -> str:
    """Return the URL of the only server that runs here. Raises ConfigError."""
    servers = [server.url for server in running_servers()]
    if len(servers) == 1:
        return servers[0]
    found = f"these run here: {', '.join(servers)}" if servers else "no server of yours runs here"
    raise ConfigError(f"{found}; name one by --url, as http://localhost:8000")


def _folder() -> Path:
    """Return the folder: SPLITFUSE_RUNTIME_DIR, or below XDG_RUNTIME_DIR, or in the temporary folder by user."""
    if own := os.environ.get(RUNTIME_VARIABLE):
        return Path(own)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "splitfuse"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"splitfuse-{user}"


def _is_ours(folder: Path) -> bool:
    """True if the folder is the user's and closed to others: anyone may create names in a temporary folder."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return folder.is_dir()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _read(path: Path) -> RuntimeFile | None:
    try:
        fields: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8") if path.is_file() else "0")  # no pipe
        return RuntimeFile(**{name: value for name, value in fields.items() if name != "splitfuse"})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _is_alive(entry: RuntimeFile) -> bool:
    try:
        os.kill(entry.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return False
    return _started(entry.pid) == entry.started


def _started(pid: int) -> str:
    """Return the time at which a process started, in the kernel's ticks; empty where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
