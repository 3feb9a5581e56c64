"""Pooling: embeddings, scores and classes of prompts, computed in the same steps as generation."""
