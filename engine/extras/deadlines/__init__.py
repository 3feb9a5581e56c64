"""Deadlines: steps as short, and prompts as early, as the goals of requests ask for. Imports no torch."""
