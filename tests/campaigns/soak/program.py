"""`splitfuse` that writes the number of its asyncio tasks to the file SOAK_TASKS names when it gets SIGUSR2."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from splitfuse.server.cli import main


def _write_tasks(number: int, frame: FrameType | None) -> None:
    names = sorted(task.get_name() for task in asyncio.all_tasks())
    path = Path(os.environ["SOAK_TASKS"])
    path.with_suffix(".new").write_text("\n".join(names))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _write_tasks)
    sys.exit(main(sys.argv[1:]))
