"""From logits to token ids: logits processors, filters, seeded sampling, logprobs."""
