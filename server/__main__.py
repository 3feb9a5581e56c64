"""`python -m splitfuse.server` is the `splitfuse` command."""

from .cli import main

raise SystemExit(main())
