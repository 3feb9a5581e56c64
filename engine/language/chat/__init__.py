"""Conversations in, prompts out; answers in, their parts out. Text only: no tensors, no tokens, no HTTP."""
