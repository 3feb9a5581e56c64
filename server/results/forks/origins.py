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
from ...jobs.saved_request import params_of

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
        weights = self._weights(params)
        self._keep(job, Origin(array("i", handle.prompt_token_ids), params, handle.seed, weights, handle.parent))

    def _keep(self, job: Job, origin: Origin) -> Origin:
        self._origins[job] = origin
        job.grow(4 * len(origin.prompt_token_ids))
        return origin

    async def _kept(self, job: Job) -> Origin | None:
        """Return the origin of an answer that came from the backend."""
        request = await self.service.results.request_of(job)
        if request is None or request["kind"] not in self.service.kept_kinds:
            return None
        params = self.service.results.bounded(params_of(self.service.kept_kinds, request, job.attachment))
        weights = request["fingerprint"], self.service.engine.weights_version
        prompt = array("i", request["prompt_token_ids"])
        return self._keep(job, Origin(prompt, params, request["seed"], weights, request.get("parent")))

    async def of(self, job: Job) -> Origin:
        """Return the origin of an answer that has ended, if the same weights are here. Raises InvalidRequestError."""
        if not job.finished:
            raise InvalidRequestError("the answer has not ended yet; GET /result/{seq_id}?wait=30", param="seq_id")
        if (origin := self._origins.get(job) or await self._kept(job)) is None:
            raise InvalidRequestError("nothing is kept of this answer's request; send it again", param="seq_id")
        if origin.weights != self._weights(origin.params):
            raise InvalidRequestError("the weights, or its adapter, have changed since this answer", param="seq_id")
        return origin

    def _weights(self, params: SamplingParams) -> tuple[str, int]:
        engine = self.service.engine
        return engine.fingerprint_of(params.adapter), engine.weights_version
