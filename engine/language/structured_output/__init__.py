"""Grammars over token ids: compiled from JSON Schema, regex, choice or EBNF, masked into the logits."""
