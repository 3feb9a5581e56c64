"""Ollama's API at /api, served only with --ollama-api."""
