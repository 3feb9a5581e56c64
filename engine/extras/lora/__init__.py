"""Adapters (LoRA) per request: a low-rank change of a model's linears, mixed in one batch."""
