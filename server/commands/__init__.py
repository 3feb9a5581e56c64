"""Commands of `splitfuse`, one file per command."""
