"""Pages of the documents that follow from the sources."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parent / "tools"


@pytest.mark.parametrize("script", ["extras_pages.py", "reference_page.py"])
def test_the_page_is_up_to_date(script: str) -> None:
    process = subprocess.run([sys.executable, TOOLS / script, "--check"], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
