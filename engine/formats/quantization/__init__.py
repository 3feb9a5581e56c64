"""Formats of quantized checkpoints, one per file: the tensors of a linear and their meaning."""
