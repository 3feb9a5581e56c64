"""Change the weights of a running model, pause its steps, and give back its memory: for training on rollouts."""

from ...extension import EngineExtension

EXTENSION = EngineExtension(
    package=__name__,
    calls={"update_weights": "llm_calls:update_weights", "sleep": "llm_calls:sleep", "wake_up": "llm_calls:wake_up"},
)
