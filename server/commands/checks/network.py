"""Network: the port that `serve` takes, and the way to the hub."""

import os
import socket

from ...process.runtime_file import running_servers
from .finding import Finding, remark

_LIMIT_S = 2.0


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
