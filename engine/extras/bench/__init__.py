"""Benchmarks of the engine: `splitfuse bench offline` and `splitfuse bench quality`."""
