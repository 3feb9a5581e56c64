"""The body of POST /generate."""

from ..prompt import Prompt
from ..sampling_request import SamplingRequest


class GenerateRequest(SamplingRequest):
    """A prompt to continue; with `stream` the answer is events."""

    default_max_tokens = 64
    prompt: Prompt
