"""Import paths of the package and tests/support, whatever PYTHONPATH says; all scripts here import this file first."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / ".import"), str(ROOT / "tests" / "support")]
