"""Installation: a client's packages in a folder of their own under .venv/clients."""

import os
import subprocess
import sys
from pathlib import Path

from catalog import FOLDER, Client

HOME = FOLDER.parents[1] / ".venv/clients"
INSTALL_SECONDS = 1800


class NotInstalled(Exception):
    """Error of packages that cannot be installed, or not in time."""


def command(client: Client) -> list[str]:
    """Return the command of the client's script, after installing missing requirements.

    Raises NotInstalled.
    """
    folder = HOME / client.folder
    stamp = folder / "installed"
    wanted = "\n".join(client.requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        _install_node(client, folder) if client.is_npm else _install_python(client, folder)
        stamp.write_text(wanted)
    if client.is_node:
        return ["node", str(FOLDER / "node" / client.script)]
    if client.is_npm:
        return [sys.executable, str(FOLDER / client.script)]
    return [str(folder / "bin/python"), str(FOLDER / client.script)]


def environment(client: Client, *, key: str) -> dict[str, str]:
    """Return the environment of the script's process, without this checkout on its path and without internet."""
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TMPDIR")}
    folder = HOME / client.folder
    return kept | {
        "PATH": os.pathsep.join([f"{folder}/bin", f"{folder}/node_modules/.bin", os.environ["PATH"]]),
        "NODE_PATH": f"{folder}/node_modules",
        "SPLITFUSE_CLIENT": client.name,
        "SPLITFUSE_API_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "true",
        "NO_PROXY": "127.0.0.1",
    }


def _install_python(client: Client, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    # without compiling modules that are never imported
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "-q", "--no-compile"]
    _run([*pip, *client.requirements])


def _install_node(client: Client, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _run(["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(folder), *client.requirements])


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as exc:
        raise NotInstalled(f"not installed within {INSTALL_SECONDS} s") from exc
    except FileNotFoundError as exc:
        raise NotInstalled(f"{words[0]} is missing") from exc
    if done.returncode:
        raise NotInstalled(" ".join(done.stderr.split())[-200:])
