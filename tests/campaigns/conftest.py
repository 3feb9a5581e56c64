"""Import paths that `make fuzz`, `make soak` and `make faults` set."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("campaigns", "server", "server/behaviour")]
