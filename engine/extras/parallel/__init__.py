"""Tensor parallelism: the other ranks as processes, and the calls that rank 0 sends them."""
