"""`splitfuse bench serve`: a load on a running server, and the latencies that its users saw."""
