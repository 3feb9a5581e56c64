"""Sampling, from logits to token ids: logits processors, filters, seeded sampling, logprobs."""
