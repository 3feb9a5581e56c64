"""Import path of this folder's modules, by name like in its scripts."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
