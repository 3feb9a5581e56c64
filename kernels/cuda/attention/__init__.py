"""Attention's work lists."""
