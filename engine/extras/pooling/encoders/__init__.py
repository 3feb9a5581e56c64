"""Encoders: every token sees its whole row, so a row is computed in one step."""
