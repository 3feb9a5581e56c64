"""The HTTP server and the command line. Knows the engine's public classes; nothing imports this package."""
