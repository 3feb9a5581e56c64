"""Offline benchmark of the engine: `splitfuse bench offline`."""
