"""Receipts: makes the receipts of one server's answers, with the fingerprints of its model."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....engine.errors import UnavailableError
from ....engine.extras.receipts.identity import Identity
from ....engine.extras.receipts.receipt import Receipt, ReceiptOutput
from ...extension import Part
from ...jobs.job import Job

if TYPE_CHECKING:
    from ....engine.serving.async_engine import AsyncEngine
    from ....engine.serving.request_output import CompletionOutput
    from ....engine.serving.submitted_request import SubmittedRequest


class Receipts(Part):
    """Part that knows the identity of the served model, from the first receipt on."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self._lock = asyncio.Lock()
        self._identities: dict[int, Identity] = {}  # by the version of the weights: the last two that were asked for

    async def prepare(self, engine: "AsyncEngine | None" = None) -> Identity:
        """Return the model's identity. The first call waits until its weights have been read, in a thread.

        `engine`: the engine of a service that is not ready yet.
        """
        engine = engine or self.service.engine
        async with self._lock:
            while (version := engine.weights_version) not in self._identities:
                try:
                    identity = await asyncio.to_thread(Identity.of, engine)
                except UnavailableError:
                    if version == engine.weights_version:
                        raise
                else:
                    if version == engine.weights_version:
                        self._identities = dict([*self._identities.items(), (version, identity)][-2:])
            return self._identities[version]

    def maker(self, request: "SubmittedRequest", engine: "AsyncEngine | None" = None) -> "_Maker":
        """Return the maker of a request's receipt, after `prepare`."""
        return _Maker(request, self, self._identities, version=(engine or self.service.engine).weights_version)

    def identity_of(self, version: int) -> Identity | None:
        """Return the identity with this version of the weights; None if nobody has asked for it yet."""
        return self._identities.get(version)


class _Maker:
    """ReceiptMaker of one job."""

    def __init__(
        self, request: "SubmittedRequest", part: Receipts, identities: Mapping[int, Identity], *, version: int
    ) -> None:
        self._params, self._max_tokens = request.lasting_params, request.max_tokens
        self._prompt_token_ids, self._seed = tuple(request.prompt_token_ids), request.seed
        self._parent = request.parent
        self._part, self._identities = part, identities  # identities known at submission
        self._version = version

    def of(self, job: Job, outputs: "Sequence[CompletionOutput]") -> dict[str, Any] | None:
        """Like ReceiptMaker, with the identity of the weights that sampled the answer."""
        version, *others = set(job.weights.values()) or {self._version}
        identity = self._identities.get(version) or self._part.identity_of(version)
        if others or identity is None or job.was_changed:
            return None
        return Receipt.of(
            self._params,
            model=job.model,
            created=job.created_at,
            identity=identity,
            seed=self._seed,
            prompt_token_ids=self._prompt_token_ids,
            max_tokens=self._max_tokens,
            outputs=[
                ReceiptOutput(tuple(output.token_ids), output.finish_reason or "", output.stop_reason)
                for output in outputs
            ],
            parent=self._parent,
        ).to_dict()
