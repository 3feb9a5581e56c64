"""`splitfuse serve` of a later version, whose results file has one table more: python newer_version.py serve …"""

import importlib.metadata
import sys

from splitfuse.server.cli import main
from splitfuse.server.results.durable import sqlite_store

if __name__ == "__main__":
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "99.0" if name == "splitfuse" else version(name)
    sqlite_store._MIGRATIONS += ("CREATE TABLE later (num INTEGER PRIMARY KEY);",)  # type: ignore[assignment]
    sqlite_store.SCHEMA_VERSION += 1
    sys.exit(main(sys.argv[1:]))
