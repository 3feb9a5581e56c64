"""Extras of the server: folders that can each be deleted; what is there registers itself (`server/extension.py`)."""
