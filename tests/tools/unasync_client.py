"""Generator of client/client.py from client/async_client.py; `make unasync` runs it."""

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

CLIENT = Path(__file__).parents[2] / "client"
HEADER = "# Generated from async_client.py by `make unasync`: edit that file.\n"
ASYNC_ONLY = {"__await__", "aclose", "start"}  # members that the blocking client does not have
NAMES = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncJob": "Job",
    "AsyncStream": "Stream",
    "_async": "_sync",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "anext": "next",
    "aread": "read",
}
RULES = ["F401", "I", "UP028"]  # imports of the members left out; `yield from`


def generate() -> str:
    """Return the source of the blocking client."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "async/client.py"), Path(folder, "sync/client.py")
        source.parent.mkdir()
        source.write_text(without_async_only((CLIENT / "async_client.py").read_text()))
        unasync.unasync_files([str(source)], [unasync.Rule("/async/", "/sync/", NAMES)])
        text = HEADER + target.read_text().partition("\n")[2]
    return ruff("format", text=ruff("check", "--fix-only", "--unsafe-fixes", "--select", ",".join(RULES), text=text))


def without_async_only(text: str) -> str:
    """Return the source without the members named in ASYNC_ONLY."""
    lines: list[str | None] = list(text.splitlines(keepends=True))
    for owner in (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)):
        for member in owner.body:
            if member_name(member) in ASYNC_ONLY:
                lines[member.lineno - 1 : member.end_lineno] = [None] * (member.end_lineno - member.lineno + 1)
    return "".join(line for line in lines if line is not None)


def member_name(member: ast.stmt) -> str:
    """Return the name that a statement of a class body defines; "" if it defines none."""
    if isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name):
        return member.targets[0].id
    return member.name if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) else ""


def ruff(*command: str, text: str) -> str:
    """Return the source after a ruff command, with this repository's settings."""
    line = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", "client/client.py", "-"]
    return subprocess.run(line, input=text, cwd=CLIENT.parent, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    (CLIENT / "client.py").write_text(generate())
