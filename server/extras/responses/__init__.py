"""/v1/responses as OpenAI has it."""
