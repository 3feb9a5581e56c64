"""NUM_WORKERS: how many test processes share the cores, by which limits in wall time grow."""

import os

NUM_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
