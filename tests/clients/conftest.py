"""The modules of this folder are found by name, as its scripts find them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
