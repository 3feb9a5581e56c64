"""Tables of cases in a JSON file beside a test, a row a line."""

import json
from pathlib import Path
from typing import Any


def table(test_file: str, name: str) -> Any:
    """Return the table of that name from the JSON file that is named after the test's file."""
    return json.loads(Path(test_file).with_suffix(".json").read_text())[name]
