"""Speculative decoding: drafters, the number of tokens to draft, and their acceptance."""
