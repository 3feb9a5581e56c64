"""Runs a scheduled batch on a device: the model's forward pass, transfers, CUDA graphs."""
