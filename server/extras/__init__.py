"""Extras of the server: folders that can each be deleted, and that register themselves (`server/extension.py`)."""
