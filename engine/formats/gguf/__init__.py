"""GGUF files as models: the header, its metadata as a config, its tensors as a weight source."""
