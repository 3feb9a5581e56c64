"""Integrity of files: finds changes that another program made on disk. Knows no store."""
