"""Latent attention on the CPU."""
