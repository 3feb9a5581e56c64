"""Origins: prompt, parameters and seed of kept answers, from which they can be computed again."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ...extension import Part
from ...jobs.job import Job

if TYPE_CHECKING:
    from ....engine.core.outputs import PromptLogprobs
    from ....engine.serving.submitted_request import SubmittedRequest


@dataclass(frozen=True)
class Origin:
    """What decides an answer. `weights`: fingerprint of the model and its adapter, and version of the weights."""

    prompt_token_ids: "array[int]"
    params: SamplingParams
    seed: int
    weights: tuple[str, int]
    parent: Mapping[str, Any] | None  # a fork's answer before, see Resumed
    scores: "dict[tuple[int, int], PromptLogprobs]" = field(default_factory=dict)  # by output and number of candidates


class Origins(Part):
    """Part that has the origin of a job for as long as memory holds the job, and counts it among the job's bytes."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self._origins: WeakKeyDictionary[Job, Origin] = WeakKeyDictionary()

    def job_accepted(self, job: Job, handle: "SubmittedRequest", params: SamplingParams) -> None:
        """Like Part."""
        prompt = array("i", handle.prompt_token_ids)
        self._origins[job] = Origin(prompt, params, handle.seed, self._weights(params), handle.parent)
        job.grow(4 * len(prompt))

    def of(self, job: Job) -> Origin:
        """Return the origin of an answer that has ended, if the same weights are here. Raises InvalidRequestError."""
        if not job.finished:
            raise InvalidRequestError("the answer has not ended yet; GET /result/{seq_id}?wait=30", param="seq_id")
        if (origin := self._origins.get(job)) is None:
            raise InvalidRequestError(
                "another process computed this answer, or it left memory; send its prompt to POST /generate",
                param="seq_id",
            )
        if origin.weights != self._weights(origin.params):
            raise InvalidRequestError("the weights, or its adapter, have changed since this answer", param="seq_id")
        return origin

    def _weights(self, params: SamplingParams) -> tuple[str, int]:
        engine = self.service.engine
        return engine.fingerprint_of(params.adapter), engine.weights_version
