"""Anthropic's Messages API at /v1/messages."""
