"""What `splitfuse COMMAND` runs, one file per command."""
