"""Imported first by each script here: the package and tests/support can be imported, whatever PYTHONPATH says."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / ".import"), str(ROOT / "tests" / "support")]
