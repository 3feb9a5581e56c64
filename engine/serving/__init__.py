"""Entries of the engine: AsyncEngine for servers, LLM for scripts, and how both are built from an EngineConfig."""
