"""The page about extras follows from the sources."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "tools/extras_pages.py"


def test_the_page_is_up_to_date() -> None:
    process = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
