"""Beam search on top of `LLM`: each step asks the engine for the likeliest next tokens of every beam."""
