"""Network: the port that `serve` takes, the program that has it, and the way to the hub."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ...process.runtime_file import running_servers
from .finding import Finding, remark

_LISTENING = "0A"  # in /proc/net/tcp
_LIMIT_S = 2.0
_PROC = Path("/proc")


def port(number: int) -> Finding:
    """Report if the port is free, else the program that has it."""
    name = "port"
    try:
        with socket.create_server(("127.0.0.1", number)):
            return Finding(name, f"{number} is free")
    except OSError as exc:
        ours = next((server for server in running_servers() if server.port == number), None)
        if ours is not None:
            return Finding(name, f"{number} has your splitfuse, which serves {ours.model}")
        owner = _owner(number)
        text = f"{number} is taken by {owner}" if owner else f"{number} cannot be taken: {exc.strerror}"
        return remark(name, text, fix="end that program, or serve --port N")


def hub() -> Finding:
    """Report if the hub of models answers."""
    import httpx

    url = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return remark("network", "switched off by HF_HUB_OFFLINE; downloaded models work")
    try:
        httpx.head(url, timeout=_LIMIT_S)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        text = f"{url} does not answer ({' '.join(str(exc).split()) or type(exc).__name__}); models on disk work"
        return remark("network", text, fix="HTTPS_PROXY for a proxy, or HF_ENDPOINT for a mirror")
    return Finding("network", f"{url} answers")


def _owner(number: int) -> str:
    """Return the process that listens on a port and its command line; empty if that cannot be seen."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(number)}
    for process in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if any(os.readlink(file) in wanted for file in process.glob("fd/*")):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"process {process.name}: {command[:80]}"
    return ""


def _inodes(number: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a port."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / "self/net" / table).read_text("utf-8").splitlines()[1:]:
                columns = line.split()
                if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == number:
                    yield columns[9]
