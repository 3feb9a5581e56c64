"""`python -m splitfuse` is the `splitfuse` command.

This file is splitfuse.__main__: the path of splitfuse holds this folder too, and nothing else may stand in the folder.
"""

from importlib import import_module

raise SystemExit(import_module("splitfuse.server.cli").main())
