"""The body of POST /generate."""

from typing import Annotated

from pydantic import Field

from ..prompt import Prompt
from ..sampling_request import SamplingRequest


class GenerateRequest(SamplingRequest):
    """A prompt to continue; with `stream` the answer is events."""

    default_max_tokens = 64
    prompt: Prompt
    ttl_s: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="Keep the result so long.")] = None
    webhook: Annotated[
        str | None, Field(description="The target, of those of the server, that is told of the end.")
    ] = None
    durable: Annotated[bool, Field(description="Keep a stream like a job, where results are kept on disk.")] = False
