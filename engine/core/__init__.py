"""The engine's core: decides which tokens a step computes and which KV blocks hold them. No torch, text or I/O."""
