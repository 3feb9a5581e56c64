"""Commands about this machine: models on its disk, and servers that run on it."""
