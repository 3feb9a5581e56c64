"""Receipts: makes the receipts of one server's answers, with the fingerprints of its model and its key."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....engine.extras.receipts.identity import Identity
from ....engine.extras.receipts.receipt import Receipt, ReceiptOutput
from ....engine.extras.receipts.signing import ReceiptKey
from ...extension import Part
from ...jobs.job import Job
from .settings import ReceiptSettings

if TYPE_CHECKING:
    from ....engine.serving.submitted_request import SubmittedRequest


class Receipts(Part):
    """Part that knows the identity of the served model, from the first receipt on."""

    def __init__(self, service: Any) -> None:
        """Raise ConfigError if the key cannot be read."""
        super().__init__(service)
        path = service.settings.section(ReceiptSettings).receipt_key_file
        self.key = None if path is None else ReceiptKey.read(Path(path))
        self._lock = asyncio.Lock()
        self._identities: dict[str, Identity] = {}  # by the engine's own fingerprint, which is cheap

    async def prepare(self) -> Identity:
        """Return the model's identity. The first call waits until its weights have been read, in a thread."""
        engine = self.service.engine
        async with self._lock:
            if engine.fingerprint not in self._identities:
                self._identities = {engine.fingerprint: await asyncio.to_thread(Identity.of, engine)}
            return self._identities[engine.fingerprint]

    def maker(self, request: "SubmittedRequest") -> "_Maker":
        """Return the maker of a request's receipt, after `prepare`."""
        return _Maker(request, self._identities[self.service.engine.fingerprint], self.key)


class _Maker:
    """ReceiptMaker of one job."""

    def __init__(self, request: "SubmittedRequest", identity: Identity, key: ReceiptKey | None) -> None:
        self._params, self._max_tokens = request.params, request.max_tokens
        self._prompt_token_ids, self._seed = tuple(request.prompt_token_ids), request.seed
        self._identity = identity
        self._key = key

    def of(self, job: Job) -> dict[str, Any]:
        """Like ReceiptMaker."""
        outputs = [
            ReceiptOutput(tuple(output.token_ids), output.finish_reason or "", output.stop_reason)
            for output in job.outputs
        ]
        receipt = Receipt.of(
            self._params,
            model=job.model,
            created=job.created_at,
            identity=self._identity,
            seed=self._seed,
            prompt_token_ids=self._prompt_token_ids,
            max_tokens=self._max_tokens,
            outputs=outputs,
        )
        return (receipt if self._key is None else receipt.signed(self._key.sign(receipt.sha256))).to_dict()
