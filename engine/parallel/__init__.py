"""Tensor parallelism: how a model is cut into shares, and the processes that compute them."""
