"""CachedAnswers: complete answers by tenant and key, within limits of number and bytes."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from ....engine.core.outputs import OutputDelta
from ....engine.core.sampling_params import SamplingParams
from ....engine.serving.submitted_request import SubmittedRequest

_BYTES_PER_ID = 8


class AnsweredRequest(SubmittedRequest):
    """Accepted request, reduced to the fields that decide its answer."""

    def __init__(self, request: SubmittedRequest) -> None:
        self.request_id, self.prompt, self.prompt_token_ids = (
            request.request_id,
            request.prompt,
            request.prompt_token_ids,
        )
        self.params: SamplingParams = request.lasting_params
        self.arrival_time, self.seed = request.arrival_time, request.seed
        self.requests = []
        self._max_tokens = request.max_tokens

    @property
    def max_tokens(self) -> int:
        """Like SubmittedRequest."""
        return self._max_tokens


@dataclass(frozen=True)
class CachedAnswer:
    """Answer with the request that it was given to. `deltas`: its events; the last one of each output has the end."""

    request: AnsweredRequest
    deltas: Sequence[OutputDelta]
    num_answer_bytes: int

    @property
    def num_bytes(self) -> int:
        """Memory of the answer and its prompt."""
        return self.num_answer_bytes + _BYTES_PER_ID * len(self.request.prompt_token_ids)


class CachedAnswers:
    """Answers of all tenants. Beyond a limit, the tenant with the most bytes loses its least recently used answer."""

    def __init__(self, *, max_answers: int, max_bytes: int) -> None:
        self._max_answers = max_answers
        self._max_bytes = max_bytes
        self._tenants: dict[str, OrderedDict[bytes, CachedAnswer]] = {}
        self._bytes: dict[str, int] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of all answers."""
        return sum(self._bytes.values())

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def find(self, tenant: str, key: bytes) -> CachedAnswer | None:
        """Return the tenant's answer, which now counts as used."""
        answers = self._tenants.get(tenant, OrderedDict())
        if key in answers:
            answers.move_to_end(key)
        return answers.get(key)

    def add(self, tenant: str, key: bytes, answer: CachedAnswer) -> None:
        """Keep an answer, unless it is larger than all of them may be."""
        if answer.num_bytes > self._max_bytes or self.find(tenant, key) is not None:
            return
        self._tenants.setdefault(tenant, OrderedDict())[key] = answer
        self._bytes[tenant] = self._bytes.get(tenant, 0) + answer.num_bytes
        while len(self) > self._max_answers or self.num_bytes > self._max_bytes:
            self._drop_of(max(self._bytes, key=self._bytes.__getitem__))

    def _drop_of(self, tenant: str) -> None:
        _, answer = self._tenants[tenant].popitem(last=False)
        self._bytes[tenant] -= answer.num_bytes
        if not self._tenants[tenant]:
            del self._tenants[tenant], self._bytes[tenant]
