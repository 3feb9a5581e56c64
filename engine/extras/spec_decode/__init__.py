"""Speculative decoding: drafters, how many tokens to draft, and what came of it."""
