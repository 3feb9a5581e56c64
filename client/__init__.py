"""Talk to a splitfuse server from Python; needs httpx alone and knows the server only by its HTTP interface."""

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
