"""/generate, /result and /cancel."""
