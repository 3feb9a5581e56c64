"""Native routes: /generate, /result and /cancel."""
