"""Change the weights of a running model, pause its steps, and give back its memory: for training on rollouts."""
