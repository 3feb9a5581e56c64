"""`splitfuse load NAME` and `unload NAME`: ask a running server of several models."""

from .results_backup import posted


def ask(action: str, name: str, *, url: str | None, api_key: str | None) -> int:
    """Load the model in its turn, or unload it once it has no work. Raises ConfigError."""
    failure = f"{name} was not {action}ed"
    fields = posted(f"/models/{action}", {"model": name}, url=url, api_key=api_key, failure=failure)
    print(f"{fields['model']} is {fields['state']}")
    return 0
