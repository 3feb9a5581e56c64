"""Formats of quantized checkpoints, one a file: which tensors of a linear they have, and what those say."""
