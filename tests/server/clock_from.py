"""`splitfuse serve` whose wall clock is as many seconds ahead as a file says, at every moment.

python clock_from.py FILE [another script of this kind and its arguments] serve …
"""

import runpy
import sys
import time
from pathlib import Path


def set_clock(path: Path) -> None:
    """Replace the clock, before a module is imported that keeps it as a default."""
    true_time = time.time
    time.time = lambda: true_time() + float(path.read_text())


if __name__ == "__main__":
    set_clock(Path(sys.argv[1]))
    sys.argv = sys.argv[2:]
    if sys.argv[0] != "serve":
        runpy.run_path(sys.argv[0], run_name="__main__")
    from splitfuse.server.cli import main

    sys.exit(main(sys.argv))
