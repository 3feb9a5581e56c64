"""HTTP below the APIs: bodies, JSON, SSE, authentication, errors, disconnects."""
