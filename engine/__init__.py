"""Engine: requests in, tokens out. Names are imported on first use, so that reading settings does not import torch."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import EngineConfig
    from .core.outputs import OutputDelta
    from .core.sampling_params import SamplingParams
    from .extras.compat.async_llm import AsyncLLM
    from .extras.compat.pipeline import pipeline
    from .extras.lora.request import LoRARequest
    from .extras.pooling.outputs import PoolingRequestOutput
    from .extras.pooling.params import PoolingParams
    from .formats.gguf.blocks import gguf_dequantize
    from .formats.gguf.gguf_tokenizer import gguf_tokenizer
    from .language.chat.chat_form import ChatForm
    from .language.structured_output.params import StructuredOutputs, StructuredOutputsParams
    from .serving.async_engine import AsyncEngine
    from .serving.input_processor import TextPrompt, TokensPrompt
    from .serving.llm import LLM, LLMStream
    from .serving.request_output import CompletionOutput, RequestOutput

# The OpenMP runtime reads this when torch loads it. By default its threads spin for long at every barrier, and beside
# other busy processes a barrier then costs a time slice: 58 tok/s instead of 2,634 for the demo model (16 sequences,
# two threads, two cores, three neighbours). Never spinning costs 25 % on a quiet machine (65 instead of 88 tok/s for a
# 221 M model at batch 1). A short spin keeps 79 of the 88. tests/bench/RESULTS.md has the table.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__all__ = [
    "LLM",
    "AsyncEngine",
    "AsyncLLM",
    "ChatForm",
    "CompletionOutput",
    "EngineConfig",
    "LLMStream",
    "LoRARequest",
    "OutputDelta",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "gguf_dequantize",
    "gguf_tokenizer",
    "pipeline",
]

_HOME = {
    "AsyncEngine": ".serving.async_engine",
    "AsyncLLM": ".extras.compat.async_llm",
    "ChatForm": ".language.chat.chat_form",
    "CompletionOutput": ".serving.request_output",
    "EngineConfig": ".config",
    "LLM": ".serving.llm",
    "LLMStream": ".serving.llm",
    "LoRARequest": ".extras.lora.request",
    "OutputDelta": ".core.outputs",
    "PoolingParams": ".extras.pooling.params",
    "PoolingRequestOutput": ".extras.pooling.outputs",
    "RequestOutput": ".serving.request_output",
    "SamplingParams": ".core.sampling_params",
    "StructuredOutputs": ".language.structured_output.params",
    "StructuredOutputsParams": ".language.structured_output.params",
    "TextPrompt": ".serving.input_processor",
    "TokensPrompt": ".serving.input_processor",
    "gguf_dequantize": ".formats.gguf.blocks",
    "gguf_tokenizer": ".formats.gguf.gguf_tokenizer",
    "pipeline": ".extras.compat.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
