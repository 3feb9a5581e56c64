"""`splitfuse` that on SIGUSR2 collects garbage and writes its asyncio tasks to the file that SOAK_TASKS names."""

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from splitfuse.engine.language.workers.heap import return_freed_memory
from splitfuse.server.cli import main


def _write_tasks(number: int, frame: FrameType | None) -> None:
    gc.collect()
    return_freed_memory()
    names = sorted(task.get_name() for task in asyncio.all_tasks())
    path = Path(os.environ["SOAK_TASKS"])
    path.with_suffix(".new").write_text("\n".join(names))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _write_tasks)
    sys.exit(main(sys.argv[1:]))
