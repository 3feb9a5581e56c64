"""Origins: prompt, parameters and seed of recent requests, from which their answers can be computed again."""

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ...extension import Part
from ...jobs.job import Job

if TYPE_CHECKING:
    from ....engine.core.outputs import PromptLogprobs
    from ....engine.serving.submitted_request import SubmittedRequest

MAX_PROMPT_TOKENS = 2**24  # of all origins: 64 MB
MAX_SCORED = 16  # answers whose scores are kept


@dataclass(frozen=True)
class Origin:
    """What decides an answer, beside the weights."""

    prompt_token_ids: "array[int]"
    params: SamplingParams
    seed: int
    weights_version: int
    scores: "dict[tuple[int, int], PromptLogprobs]" = field(default_factory=dict)  # by output and number of candidates


class Origins(Part):
    """Part that keeps the origin of each request, the oldest no longer than MAX_PROMPT_TOKENS allows."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self._origins: dict[str, Origin] = {}  # oldest first
        self._num_tokens = 0
        self._scored: list[str] = []

    def job_accepted(self, job: Job, handle: "SubmittedRequest", params: SamplingParams) -> None:
        """Like Part."""
        prompt = array("i", handle.prompt_token_ids)
        self.add(job, Origin(prompt, params, handle.seed, self.service.engine.weights_version))

    def add(self, job: Job, origin: Origin) -> None:
        """Keep the origin of a job."""
        self._origins[job.seq_id] = origin
        self._num_tokens += len(origin.prompt_token_ids)
        while self._num_tokens > MAX_PROMPT_TOKENS:
            oldest = next(iter(self._origins))
            self._num_tokens -= len(self._origins.pop(oldest).prompt_token_ids)

    def of(self, job: Job) -> Origin:
        """Return the origin of an answer that has ended. Raises InvalidRequestError."""
        if not job.finished:
            raise InvalidRequestError("the answer has not ended yet; GET /result/{seq_id}?wait=30", param="seq_id")
        if (origin := self._origins.get(job.seq_id)) is None:
            raise InvalidRequestError(
                "this server no longer has the prompt of this answer, or another process computed it; "
                "send the prompt to POST /generate again",
                param="seq_id",
            )
        return origin

    def scored(self, job: Job) -> None:
        """Note that an answer has scores, and drop the scores of the oldest such answer."""
        self._scored.append(job.seq_id)
        if len(self._scored) > MAX_SCORED and (oldest := self._origins.get(self._scored.pop(0))) is not None:
            oldest.scores.clear()
