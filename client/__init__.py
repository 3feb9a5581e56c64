"""Talk to a splitfuse server from Python; needs httpx alone and knows the server only by its HTTP interface."""

import sys
from types import ModuleType
from typing import Any

from .async_client import AsyncClient, AsyncJob, AsyncStream
from .chat import ChatAnswer, ChatDelta, ToolCall, response_format, tool
from .client import Client, Job, Stream
from .errors import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    QueueFullError,
    ServerError,
    ServerStartError,
)
from .events import StreamEvent
from .results import ErrorDetail, Output, Ranked, Result, Timings, Usage, Verdict
from .server_process import Server, serve
from .server_process import client_of as _client_of

__all__ = [
    "APIConnectionError",
    "APIError",
    "APITimeoutError",
    "AsyncClient",
    "AsyncJob",
    "AsyncStream",
    "AuthenticationError",
    "BadRequestError",
    "ChatAnswer",
    "ChatDelta",
    "Client",
    "ErrorDetail",
    "Job",
    "NotFoundError",
    "Output",
    "QueueFullError",
    "Ranked",
    "Result",
    "Server",
    "ServerError",
    "ServerStartError",
    "Stream",
    "StreamEvent",
    "Timings",
    "ToolCall",
    "Usage",
    "Verdict",
    "response_format",
    "serve",
    "tool",
]


class _CallablePackage(ModuleType):
    """Package that DeepSpeed-MII's scripts call: `mii.client("model name")`."""

    def __call__(self, model: str, **options: Any) -> Server | Client:
        return _client_of(model, **options)


sys.modules[__name__].__class__ = _CallablePackage
