"""OpenAI's files and batches API at /v1/files and /v1/batches."""
