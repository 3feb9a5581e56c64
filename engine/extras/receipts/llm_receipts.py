"""LLMReceipts: the receipts of one LLM's answers, and their verification on the same LLM."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...serving.async_engine import AsyncEngine
from ...serving.llm import LLM
from ...serving.request_output import RequestOutput
from ...serving.submitted_request import SubmittedRequest
from .identity import Identity
from .receipt import Receipt, ReceiptOutput
from .replay import Replaying, Replays
from .verification import Comparison, Mismatch, Verdict, known_of, params_of, verdict_of


class LLMReceipts:
    """Identity of an LLM's model."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine, self._lock = engine, threading.Lock()
        self._known: tuple[int, Identity] | None = None  # version of the weights, and the identity with them

    def identity(self) -> tuple[int, Identity]:
        """Return the version of the weights and the model's identity. The first call reads the weights' files whole.

        Raises UnavailableError if the files have changed since they were loaded, or if there are none.
        """
        with self._lock:
            while self._known is None or self._known[0] != self._engine.weights_version:
                self._known = self._engine.weights_version, Identity.of(self._engine)
            return self._known

    def maker(self) -> "ReceiptMaker":
        """Return the maker of one call's receipts."""
        return ReceiptMaker(*self.identity(), model=self._engine.config.model_name)


def verify(llm: LLM, receipt: Mapping[str, Any]) -> Verdict:
    """Check an answer's receipt in one pass over its tokens, and return its Verdict.

    `valid` says if the hash and every token are right, `mismatch` names the first token that does not follow;
    `to_dict()` is the body of POST /verify. Raises InvalidRequestError if the receipt is malformed or of another model.
    """
    read = Receipt.read(receipt)
    llm.engine.state(LLMReceipts).identity()[1].check(read.identity)
    found = (_mismatch(llm, level) for level in reversed([*read.levels]) if level.has_sampled)
    return verdict_of(read, next((mismatch for mismatch in found if mismatch is not None), None))


def _mismatch(llm: LLM, receipt: Receipt) -> Mismatch | None:
    comparison = Comparison(receipt)
    replaying = llm.engine.part(Replaying)
    assert replaying is not None
    prompt, params = list(receipt.prompt_token_ids), params_of(receipt, llm.engine.variants)
    with llm.begin([prompt], [params], [_Expected(replaying.replays, receipt)], known_of(receipt)) as stream:
        while not comparison.ended.is_set():
            llm.step(stream)
            while stream.deltas:
                comparison.sink(stream.deltas.popleft())
    if comparison.error is not None:
        raise comparison.error
    return comparison.mismatch


class _Expected(NamedTuple):
    """Observer of a verification's requests, before a step runs them."""

    replays: Replays
    receipt: Receipt

    def note(self, submitted: SubmittedRequest) -> None:
        """Like CallObserver."""
        self.replays.expect(submitted.requests, [output.token_ids for output in self.receipt.outputs])

    def ended(self, outputs: Sequence[RequestOutput]) -> None:
        """Like CallObserver."""


class ReceiptMaker:
    """Maker of the receipts of one call's answers."""

    def __init__(self, version: int, identity: Identity, *, model: str) -> None:
        self._version, self._identity, self._model = version, identity, model
        self._submitted: dict[str, SubmittedRequest] = {}
        self._created = int(time.time())

    def note(self, submitted: SubmittedRequest) -> None:
        """Note the request of a prompt, if it wants a receipt."""
        if submitted.params.wants_receipt:
            self._submitted[submitted.request_id] = submitted

    def ended(self, answers: Sequence[RequestOutput]) -> None:
        """Give each complete answer its receipt; None if its tokens come from several weight versions."""
        for answer in answers:
            request = self._submitted.get(answer.request_id)
            if request is None or {answer.first_weights_version, answer.weights_version} != {self._version}:
                continue
            answer.receipt = Receipt.of(
                request.params,
                model=self._model,
                created=self._created,
                identity=self._identity,
                seed=request.seed,
                prompt_token_ids=tuple(request.prompt_token_ids),
                max_tokens=request.max_tokens,
                outputs=[
                    ReceiptOutput(tuple(output.token_ids), output.finish_reason or "", output.stop_reason)
                    for output in answer.outputs
                ],
                parent=request.parent,
            ).to_dict()
