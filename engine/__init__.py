"""Requests in, tokens out. Names are imported on first use: reading settings must not cost an import of torch."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import EngineConfig
    from .engine import AsyncEngine
    from .llm import LLM
    from .outputs import CompletionOutput, OutputDelta, RequestOutput
    from .sampling_params import SamplingParams

# Read by the OpenMP runtime when torch loads it. By default its threads spin at every barrier, and where anything else
# wants a core (our own HTTP loop on a small machine) each barrier then costs a time slice: 58 instead of 2,634 tok/s
# for the demo model, 16 sequences, two threads on two cores with one core busy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

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
