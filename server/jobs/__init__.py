"""Submitted requests and the store of their results."""
