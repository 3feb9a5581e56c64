"""The scripts of this folder can be imported by their tests. Without Triton none of them does anything."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
if find_spec("triton") is None:
    collect_ignore_glob = ["test_*"]
