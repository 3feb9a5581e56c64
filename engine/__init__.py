"""Requests in, tokens out. Names are imported on first use: reading settings must not cost an import of torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import EngineConfig
    from .engine import AsyncEngine
    from .llm import LLM
    from .outputs import CompletionOutput, OutputDelta, RequestOutput
    from .sampling_params import SamplingParams

__all__ = ["LLM", "AsyncEngine", "CompletionOutput", "EngineConfig", "OutputDelta", "RequestOutput", "SamplingParams"]

_HOME = {
    "AsyncEngine": ".engine",
    "CompletionOutput": ".outputs",
    "EngineConfig": ".config",
    "LLM": ".llm",
    "OutputDelta": ".outputs",
    "RequestOutput": ".outputs",
    "SamplingParams": ".sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
