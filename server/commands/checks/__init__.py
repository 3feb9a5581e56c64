"""Checks of `splitfuse doctor` that need no part of the engine."""
