"""SubmittedRequest: an accepted request, as its submitter sees it; Resumed: a request that another process began."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.outputs import KnownOutput
from ..core.request import Request
from ..core.sampling_params import SamplingParams
from .request_output import CompletionOutput, RequestOutput


class SubmittedRequest:
    """Accepted request. All its deltas go to the sink that it was submitted with."""

    def __init__(
        self, request_id: str, prompt: str | None, requests: list[Request], parent: Mapping[str, Any] | None = None
    ) -> None:
        self.request_id = request_id
        self.parent = parent  # answer that a fork begins with, see Resumed
        self.prompt = prompt  # the prompt's text; None if it came as ids
        self.prompt_token_ids = requests[0].token_ids[: requests[0].num_prompt_tokens]
        self.params: SamplingParams = requests[0].params
        self.arrival_time = requests[0].arrival_time
        self.seed = requests[0].seed  # the first output's; the seeds of the others follow from it
        self.requests = requests

    def output(self) -> RequestOutput:
        """Return its outputs before the first delta."""
        outputs = [CompletionOutput(index) for index in range(self.params.n)]
        output = RequestOutput(self.request_id, self.prompt, self.prompt_token_ids, outputs)
        output.params, output.seed = self.lasting_params, self.seed
        return output

    @property
    def lasting_params(self) -> SamplingParams:
        """Parameters for what outlives the request: without the matrices of an adapter."""
        adapter = self.params.adapter
        return self.params if adapter is None else replace(self.params, adapter=adapter.named())

    @property
    def max_tokens(self) -> int:
        """Most tokens that each of its outputs can have."""
        return self.requests[0].max_num_tokens - self.requests[0].num_prompt_tokens

    @property
    def started(self) -> bool:
        """True if any of its outputs has been scheduled; it is queued otherwise."""
        return any(request.first_scheduled_time is not None for request in self.requests)


@dataclass(frozen=True, slots=True)
class Resumed:
    """Request that goes on where another process left it, with the seed that it had there.

    `outputs`: one entry for each of its n outputs. `arrival_time`: by this process's clock; may be negative.
    `is_new`: it waits in the queue like a request that nobody has begun. `parent`: of a fork, JSON values
    that state the answer whose first tokens it has, as a receipt does.
    """

    seed: int
    outputs: tuple[KnownOutput, ...]
    arrival_time: float
    is_new: bool = False
    parent: Mapping[str, Any] | None = None
