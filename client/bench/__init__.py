"""`splitfuse bench serve`: a load on a running server, and what its users saw."""
