"""NUM_WORKERS: number of test processes that share the cores, a factor of limits in wall time."""

import os

NUM_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
