"""What can go wrong, as one tree. Users' faults and the machine's limits are exceptions; our own bugs are asserts.

SplitfuseError
├── ConfigError            the settings or the model folder are wrong: nothing starts
├── InvalidRequestError    the request is wrong: nothing runs (HTTP 400)
│   └── ContextLengthError the request does not fit the model or the cache
├── ModelNotFoundError     the request names a model that is not served (HTTP 404)
├── QueueFullError         come back later (HTTP 429)
├── RankLostError          a process of a tensor-parallel model has ended or hangs: the engine stops
├── UnavailableError       loading, draining or stopped (HTTP 503)
└── RequestFailedError     this request failed inside the engine; others went on (HTTP 500)
    ├── ConstraintError    … because of what it asked for: no token was left that it allows (HTTP 400)
    └── EngineDeadError    … because the engine died, with all that it had
"""

import uuid

FAILED_ON_REQUEST = "the engine failed on this request"


class SplitfuseError(Exception):
    """Base of everything that splitfuse raises on purpose. `str(error)` is meant for users and names the way out."""


class ConfigError(SplitfuseError):
    """Settings or model files that cannot work; the message names them and what to do."""


class InvalidRequestError(SplitfuseError):
    """A request field that cannot work. `param` names the field as the user wrote it, `code` refines the kind."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthError(InvalidRequestError):
    """Prompt and output together are longer than the model or the KV cache can hold."""

    def __init__(self, message: str, *, param: str | None = "prompt") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class ModelNotFoundError(SplitfuseError):
    """The request asks for a model that this server does not serve."""


class QueueFullError(SplitfuseError):
    """The waiting queue is full. `retry_after_s`: when a try makes sense, in seconds, from the measured drain rate."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(SplitfuseError):
    """The engine takes no requests now: loading, draining or stopped."""


class RankLostError(SplitfuseError):
    """A process of a tensor-parallel model has ended or does not answer: no step can succeed any more."""


class RequestFailedError(SplitfuseError):
    """The engine failed while it ran this request. `error_id` is in the log beside the traceback."""

    def __init__(self, message: str, *, error_id: str, code: str | None = None) -> None:
        super().__init__(message)
        self.error_id = error_id
        self.code = code  # where users can do something about it; the message is then for them


class EngineDeadError(RequestFailedError):
    """The engine died while it had this request. Where results are kept, another process can go on with it."""


class ConstraintError(RequestFailedError):
    """A request's own constraints left no token to sample. The message names them, for the user to read."""

    def __init__(self, message: str, *, error_id: str, param: str) -> None:
        super().__init__(message, error_id=error_id)
        self.param = param


def is_out_of_memory(exc: BaseException) -> bool:
    """Whether a tensor did not fit. Of a GPU torch has a type of its own, known by name: here is no torch."""
    return type(exc).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(exc)


def new_error_id() -> str:
    """The id that a client's error message and the log share."""
    return uuid.uuid4().hex[:12]
