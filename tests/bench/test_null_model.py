"""Test that the null model still serves: it runs only by hand, so nothing else shows a change of the wrapped server."""

import socket
import subprocess
import sys
from pathlib import Path


def test_streams_come_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, str(Path(__file__).parent / "null_model.py"), "--streams", "4", "--tokens", "8"]
    result = subprocess.run([*command, "--port", str(port)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("4 streams of 8") == 2
