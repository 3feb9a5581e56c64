"""Import path for the tests of this folder's scripts, which need Triton."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
if find_spec("triton") is None:
    collect_ignore_glob = ["test_*"]
