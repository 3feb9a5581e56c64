"""Receipts of answers: their canonical form, the fingerprints and signatures in them, and their verification."""
