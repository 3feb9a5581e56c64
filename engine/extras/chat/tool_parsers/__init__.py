"""One file per style in which models write tool calls."""
