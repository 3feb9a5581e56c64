"""HTTP without an API: bodies, JSON, SSE, authentication, errors, disconnects."""
