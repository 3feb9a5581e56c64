"""LLM inference server and engine. Names are imported on first use, so that `import splitfuse` costs nothing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import (
        APIConnectionError,
        APIError,
        APITimeoutError,
        AsyncClient,
        AuthenticationError,
        BadRequestError,
        Client,
        NotFoundError,
        ServerError,
        serve,
    )
    from .engine import (
        LLM,
        AsyncEngine,
        AsyncLLM,
        CompletionOutput,
        EngineConfig,
        LLMStream,
        OutputDelta,
        RequestOutput,
        SamplingParams,
        StructuredOutputs,
        StructuredOutputsParams,
        TextPrompt,
        TokensPrompt,
        pipeline,
    )
    from .engine.errors import (
        ConfigError,
        ContextLengthError,
        InvalidRequestError,
        RequestFailedError,
        UnavailableError,
    )


class SplitfuseError(Exception):
    """Base of the errors that splitfuse raises on purpose. `str(error)` is meant for users and names the way out.

    It stands here because the engine and the client know nothing else of each other.
    """


__all__ = [
    "LLM",
    "APIConnectionError",
    "APIError",
    "APITimeoutError",
    "AsyncClient",
    "AsyncEngine",
    "AsyncLLM",
    "AuthenticationError",
    "BadRequestError",
    "Client",
    "CompletionOutput",
    "ConfigError",
    "ContextLengthError",
    "EngineConfig",
    "InvalidRequestError",
    "LLMStream",
    "NotFoundError",
    "OutputDelta",
    "RequestFailedError",
    "RequestOutput",
    "SamplingParams",
    "ServerError",
    "SplitfuseError",
    "StructuredOutputs",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "UnavailableError",
    "pipeline",
    "serve",
]
if "__path__" in globals():  # pytest imports this file as a plain module if the checkout's name is no identifier
    __path__.append(f"{__path__[0]}/server/process/main")  # where `python -m splitfuse` finds splitfuse.__main__
_OF_CLIENT = {"AsyncClient", "Client", "serve", "APIConnectionError", "APIError", "APITimeoutError"}
_OF_CLIENT |= {"AuthenticationError", "BadRequestError", "NotFoundError", "ServerError"}
_ERRORS = {"ConfigError", "ContextLengthError", "InvalidRequestError", "RequestFailedError", "UnavailableError"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module(".server", __name__).package_version()
    if name == "client":
        return import_module(".client", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = ".client" if name in _OF_CLIENT else ".engine.errors" if name in _ERRORS else ".engine"
    return getattr(import_module(home, __name__), name)
