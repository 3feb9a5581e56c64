"""`splitfuse ps`: the servers that this user runs on this machine, with their requests and memory."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from ....client.base import key_headers
from ...process.runtime_file import RuntimeFile, running_servers
from .model_table import megabytes, table

_TIMEOUT_S = 2.0


def print_servers(*, api_key: str | None, as_json: bool) -> int:
    """Print a line per server."""
    servers = [_figures(server, key_headers(api_key)) for server in running_servers()]
    if as_json:
        print(json.dumps(servers, indent=1))
    elif servers:
        rows = [tuple(map(_cell_text, server.values())) for server in servers]
        print(table(("PORT", "MODEL", "PID", "STATE", "RUNNING", "WAITING", "MEMORY", "URL"), rows))
    else:
        print("no server of yours runs here; splitfuse serve starts one")
    return 0


def _figures(server: RuntimeFile, headers: Mapping[str, str]) -> dict[str, Any]:
    state, stats = _ask(server, headers)
    return {
        "port": server.port,
        "model": server.model,
        "pid": server.pid,
        "state": state,
        "running": stats.get("num_running"),
        "waiting": stats.get("num_waiting"),
        "memory": _memory(server.pid),
        "url": server.url,
    }


def _ask(server: RuntimeFile, headers: Mapping[str, str]) -> tuple[str, Mapping[str, Any]]:
    """Ask the server for its state and its figures."""
    try:
        transport = httpx.HTTPTransport(uds=server.uds, verify=False)  # our own process, whatever its certificate
        with httpx.Client(transport=transport, headers=headers, timeout=_TIMEOUT_S) as client:
            answer = client.get(f"{server.url}/stats")
    except httpx.HTTPError:
        return "silent", {}
    if answer.status_code == 503:
        return "loading", {}
    if answer.status_code != 200:
        return "needs a key" if answer.status_code == 401 else f"answers {answer.status_code}", {}
    stats = answer.json()
    return str(stats.get("state", "ready")), stats


def _memory(pid: int) -> int | None:
    """Return the bytes of main memory that a process holds; None where there is no /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cell_text(value: Any) -> str:
    if value is None:
        return "-"
    return megabytes(value) if isinstance(value, int) and value > 10**6 else str(value)
