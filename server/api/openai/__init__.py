"""OpenAI's completions, chat completions and models APIs under /v1."""
