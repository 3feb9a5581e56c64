"""Kept jobs on disk: what is written, when, and where to."""
