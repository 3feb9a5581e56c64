"""The body of POST /generate."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from ..known_fields import NOTHING
from ..prompt import Prompt, without_special_tokens
from ..sampling_request import SamplingRequest


class GenerateRequest(SamplingRequest):
    """A prompt to continue. With `stream` the answer is a stream of events."""

    default_max_tokens = 64
    unsupported: ClassVar = {**SamplingRequest.unsupported, "return_token_ids": (*NOTHING, True)}  # always done
    prompt: Prompt
    add_special_tokens: bool = True
    ttl_s: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="Seconds to keep the result.")] = None
    webhook: Annotated[str | None, Field(description="Name of the server's target that is notified of the end.")] = None
    durable: Annotated[bool, Field(description="Keep a stream like a job, on a server with results on disk.")] = False

    def engine_prompt(self) -> Any:
        """Return the prompt in the engine's form."""
        return self.prompt if self.add_special_tokens else without_special_tokens(self.prompt)
