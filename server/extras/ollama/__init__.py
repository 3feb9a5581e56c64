"""/api as Ollama has it; served with --ollama-api only."""
