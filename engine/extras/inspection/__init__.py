"""Looking into the engine: what happened to a request in words, a record per step, a map of the cache. No torch."""
