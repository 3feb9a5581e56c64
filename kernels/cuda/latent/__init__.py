"""Latent attention on a GPU."""
