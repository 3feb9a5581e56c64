"""RequestOutputKind, under vLLM's name, and RequestOutputs of each kind."""

from copy import copy
from dataclasses import replace
from enum import Enum

from ...core.outputs import OutputDelta
from ...serving.request_output import CompletionOutput, RequestOutput


class RequestOutputKind(Enum):
    """Content of the RequestOutputs of one request."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # tokens since the last output
    FINAL_ONLY = 2  # everything, once


def snapshot(output: RequestOutput) -> RequestOutput:
    """Return a copy that does not grow."""
    outputs = [replace(item, token_ids=[*item.token_ids], logprobs=copy(item.logprobs)) for item in output.outputs]
    return replace(output, outputs=outputs)


def only_new(output: RequestOutput, delta: OutputDelta) -> RequestOutput:
    """Return the delta as a RequestOutput, in which outputs that have ended stay ended."""
    outputs = [
        CompletionOutput(
            item.index, finish_reason=item.finish_reason, stop_reason=item.stop_reason, metrics=item.metrics
        )
        for item in output.outputs
    ]
    outputs[delta.index] = CompletionOutput(delta.index)
    outputs[delta.index].add(delta)
    return replace(output, outputs=outputs)
