"""Settings that must stand before torch is imported."""

import os

# Tiny models: a second thread only adds barriers, and beside another busy process each of these costs milliseconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nothing here comes from the hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
