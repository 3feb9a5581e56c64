"""`splitfuse serve` whose steps take 0.5 s while the file PATH exists and a request has NUMBER output tokens or more.

python slow_at.py NUMBER PATH [another script of this kind and its arguments] serve …
"""

import runpy
import sys
import time
from pathlib import Path

from splitfuse.engine.core.batch import Batch, RowOutput
from splitfuse.engine.execution.runner.model_runner import ModelRunner
from splitfuse.server.cli import main
from splitfuse.server.extras.fronts import engine_process
from splitfuse.server.process import process

STEP_S = 0.5


def slow_down(number: int, path: Path) -> None:
    """Hold the thread of the steps; the event loop answers meanwhile. A step ends soon after the file is gone."""
    run = ModelRunner.run

    def run_slowly(self: ModelRunner, batch: Batch) -> list[RowOutput]:
        until = time.monotonic() + STEP_S
        while any(row.request.num_output_tokens >= number for row in batch.rows) and time.monotonic() < until:
            if not path.exists():
                break
            time.sleep(0.01)
        return run(self, batch)

    ModelRunner.run = run_slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    process.END_S = 60  # a busy machine does not kill the process before its last bytes
    slow_down(int(sys.argv[1]), Path(sys.argv[2]))
    if sys.argv[3] == "engine":  # the process of an engine with fronts
        sys.exit(engine_process.main(*sys.argv[4:]))
    engine_process.PROGRAM[:] = [*sys.argv[:3], "engine"]
    sys.argv = sys.argv[3:]
    if sys.argv[0] != "serve":
        runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit(main(sys.argv))
