"""Conversations: chat templates, tools, reasoning and checks of answers, shared by all APIs that have them."""
