"""Names of vLLM and DeepSpeed-MII over the engine: `AsyncLLM`, `pipeline`."""
