"""Execution of a step on a device: the runner, the models and the sampler."""
