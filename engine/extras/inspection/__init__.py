"""Inspection of the engine: a request's history in words, a record per step, a map of the cache. No torch."""
