"""OpenAI's Responses API at /v1/responses."""
