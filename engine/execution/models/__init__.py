"""Model families: each states its difference from the one decoder."""
