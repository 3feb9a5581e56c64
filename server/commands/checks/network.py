"""Network: the port that `serve` takes, and the way to the hub."""

import os
import socket

from ....engine.formats.gguf_files import hub_fault
from ...process.runtime_file import running_servers
from .finding import Finding, remark


def port(number: int) -> Finding:
    """Report if the port is free, or which server of this user has it."""
    name = "port"
    try:
        with socket.create_server(("127.0.0.1", number)):
            return Finding(name, f"{number} is free")
    except OSError as exc:
        ours = next((server for server in running_servers() if server.port == number), None)
        if ours is not None:
            return Finding(name, f"{number} has your splitfuse, which serves {ours.model}")
        return remark(
            name, f"{number} cannot be taken: {os.strerror(exc.errno or 0)}", fix="end that program, or serve --port N"
        )


def hub() -> Finding:
    """Report if the hub of models answers."""
    if (fault := hub_fault()) is None:
        return Finding("network", "the hub of models answers")
    fix = "HTTPS_PROXY for a proxy, or HF_ENDPOINT for a mirror"
    return remark("network", f"{fault}; models on disk work", fix=fix)
