"""Tree of exceptions: users' faults and the machine's limits. Our own bugs are asserts.

SplitfuseError
├── ConfigError            the settings or the model folder are wrong: nothing starts
├── InvalidRequestError    the request is wrong: nothing runs (HTTP 400)
│   └── ContextLengthError the request does not fit the model or the cache
├── ModelNotFoundError     the request names a model that is not served (HTTP 404)
├── QueueFullError         come back later (HTTP 429)
│   └── GoalUnreachableError
├── RankLostError          a process of a tensor-parallel model has ended or hangs: the engine stops
├── UnavailableError       loading, draining or stopped (HTTP 503)
└── RequestFailedError     this request failed inside the engine; others went on (HTTP 500)
    ├── ConstraintError    … because its own constraints allow no further token (HTTP 400)
    └── EngineDeadError    … because the engine died
"""

import re
import uuid

from .. import SplitfuseError as SplitfuseError

FAILED_ON_REQUEST = "the engine failed on this request"


# Messages of torch, Triton and cuBLAS on a device that is lost, without their messages for a call that was refused.
_LOST_DEVICE = re.compile(
    r"(CUDA error|Triton Error \[CUDA\]): (?!out of memory|invalid (configuration )?argument|CUBLAS_)"
    r"|CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)"
)


class ConfigError(SplitfuseError):
    """Settings or model files cannot work. The message names them and the remedy."""


class InvalidRequestError(SplitfuseError):
    """A field of a request cannot work. `param`: the user's name of the field; `code`: a finer kind of error."""

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
    """The waiting queue is full. `retry_after_s`: seconds after which to retry, from the measured drain rate."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class GoalUnreachableError(QueueFullError):
    """The first token is predicted to come after the request's `ttft_ms`."""


class UnavailableError(SplitfuseError):
    """The engine takes no requests now: loading, draining or stopped."""


class RankLostError(SplitfuseError):
    """A process of a tensor-parallel model has ended or does not answer: no step can succeed any more."""


class RequestFailedError(SplitfuseError):
    """The engine failed while it ran this request. `error_id` is in the log beside the traceback."""

    def __init__(self, message: str, *, error_id: str, code: str | None = None) -> None:
        super().__init__(message)
        self.error_id = error_id
        self.code = code  # only of failures that users can mend: then the message is for them


class EngineDeadError(RequestFailedError):
    """The engine died while it had this request. Where results are kept, another process can go on with it."""


class ConstraintError(RequestFailedError):
    """A request's own constraints left no token to sample. The message names them, for the user to read."""

    def __init__(self, message: str, *, error_id: str, param: str) -> None:
        super().__init__(message, error_id=error_id)
        self.param = param


def is_out_of_memory(exc: BaseException) -> bool:
    """True if a tensor did not fit. torch's own exception for GPUs is compared by name: no torch is imported here."""
    return type(exc).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(exc)


def is_device_lost(exc: BaseException) -> bool:
    """True if every later call to the GPU fails, as after an illegal access: no row of the step is at fault."""
    return _LOST_DEVICE.search(str(exc)) is not None


def new_error_id() -> str:
    """Create the id that a client's error message and the log share."""
    return uuid.uuid4().hex[:12]
