"""SplitfuseError: base of the engine's errors and of the client's, which know nothing else of each other."""


class SplitfuseError(Exception):
    """Base of the errors that splitfuse raises on purpose. `str(error)` is meant for users and names the way out."""
