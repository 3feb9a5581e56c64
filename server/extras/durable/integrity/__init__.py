"""Finds what was changed on the disk by anybody but this program. Knows no store."""
