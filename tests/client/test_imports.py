"""The client must install and import without torch and without the server."""

import subprocess
import sys

FOREIGN = ("torch", "transformers", "numpy", "fastapi", "splitfuse.engine", "splitfuse.server", "splitfuse.kernels")


def test_the_client_imports_httpx_and_the_standard_library_only() -> None:
    text = (
        "import sys, splitfuse.client, splitfuse.client.bench.cli\n"
        f"print([name for name in {FOREIGN!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
