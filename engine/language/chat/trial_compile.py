"""Trial of a long chat template: a process of its own compiles it first, with limits in time and memory.

700 KB with 100,000 expressions compile for 15 to 20 s.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from .render_worker import COMPILE_LIMIT_S

_SLACK_S = 20.0  # for a machine with other work; the process's own limit counts its CPU time


def check_compiles(recipe: Mapping[str, Any]) -> None:
    """Raise ConfigError if the template compiles too slowly, or with too much memory, or dies of it."""
    if not _compiles(json.dumps(recipe)):
        num_chars = sum(len(recipe[name] or "") for name in ("source", "tool_source"))
        raise ConfigError(
            f"the chat template of {num_chars} characters does not compile within {COMPILE_LIMIT_S:g} s and the "
            "memory for it; give a shorter one with --chat-template"
        )


def _compiles(setup: str) -> bool:
    """Return false if the limits ended the process; this process then reports every other error."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__package__} import render_worker as it; it.main()"
    command = [sys.executable, "-P", "-c", program]
    try:
        tried = subprocess.run(
            command, input=f"{setup}\n".encode(), capture_output=True, timeout=COMPILE_LIMIT_S + _SLACK_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode >= 0 and b"MemoryError" not in tried.stderr
