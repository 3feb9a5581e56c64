"""Verification: answers a receipt's request again, with its tokens as drafts, and finds the first that is wrong."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...core.outputs import KnownOutput, OutputDelta
from ...core.sampling_params import SamplingParams
from ...errors import ConstraintError, InvalidRequestError, SplitfuseError, UnavailableError
from ...serving.submitted_request import Resumed
from .identity import Identity
from .receipt import Receipt
from .replay import Replaying

if TYPE_CHECKING:
    from ...serving.async_engine import AsyncEngine


@dataclass(frozen=True)
class Mismatch:
    """First place at which an output does not follow. `token_id`: the receipt's token; `drawn`: the model's.

    None stands for the end of the output.
    """

    output: int
    position: int
    token_id: int | None
    drawn: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of a verification. `reason`: empty if the receipt is valid."""

    mismatch: Mismatch | None = None
    reason: str = ""

    @property
    def valid(self) -> bool:
        """True if the receipt is valid."""
        return not self.reason

    def to_dict(self) -> dict[str, Any]:
        """Return the body of POST /verify."""
        found = self.mismatch
        return {
            "valid": self.valid,
            "first_mismatch": None if found is None else found.position,
            "output": None if found is None else found.output,
            "token_id": None if found is None else found.token_id,
            "drawn_token_id": None if found is None else found.drawn,
            "reason": self.reason or None,
        }


async def verify(engine: "AsyncEngine", receipt: Receipt, identity: Identity, *, tenant: str = "") -> Verdict:
    """Verify a receipt on an engine with this identity; its tokens are computed whatever its hash says.

    Raises InvalidRequestError if the receipt is of another model or does not fit, and like AsyncEngine.submit.
    """
    identity.check(receipt.identity)
    mismatch = await _first_mismatch(engine, receipt, tenant=tenant)
    reasons = []
    if receipt.sha256 != receipt.claimed_sha256:
        reasons.append("sha256 is not the hash of the receipt's content")
    if mismatch is not None:
        reasons.append(mismatch.reason)
    return Verdict(mismatch=mismatch, reason="; ".join(reasons))


async def _first_mismatch(engine: "AsyncEngine", receipt: Receipt, *, tenant: str) -> Mismatch | None:
    """Return the first place at which the answer does not follow from its request; None if all of it follows.

    The tokens that a fork kept must follow from its parent's request.
    """
    for level in reversed([*receipt.levels]):
        if level.has_sampled and (mismatch := await _mismatch(engine, level, tenant=tenant)) is not None:
            return mismatch
    return None


async def _mismatch(engine: "AsyncEngine", receipt: Receipt, *, tenant: str) -> Mismatch | None:
    comparison = _Comparison(receipt)
    params, prompt = _params_of(receipt, engine.variants), list(receipt.prompt_token_ids)
    replaying = engine.part(Replaying)
    assert replaying is not None
    known = receipt.outputs[0].token_ids[: receipt.num_known]  # that a fork began with
    resumed = Resumed(receipt.seed, (KnownOutput(known),), time.monotonic(), is_new=True) if known else None
    handle = await engine.submit(prompt, params, comparison.sink, tenant=tenant, resumed=resumed)
    # No step has been scheduled since: the event loop has not run.
    replaying.replays.expect(handle.requests, [output.token_ids for output in receipt.outputs])
    try:
        await comparison.ended.wait()
    finally:
        engine.abort(handle.request_id)
    if comparison.error is not None:
        raise comparison.error
    return comparison.mismatch


def _params_of(receipt: Receipt, variants: Sequence[Any]) -> SamplingParams:
    """Return the parameters of a verification, with the name of the adapter.

    Raises InvalidRequestError if the receipt's adapter is not among the engine's `variants`.
    """
    # A salt of its own: nothing of the answer's own pass is taken from the prefix cache.
    salt = secrets.token_hex(16)
    return replace(receipt.params, max_tokens=receipt.max_tokens, cache_salt=salt, adapter=_adapter(receipt, variants))


def _adapter(receipt: Receipt, variants: Sequence[Any]) -> str | None:
    if receipt.adapter is None:
        return None
    name: str | None = next((item.name for item in variants if f"sha256:{item.digest}" == receipt.adapter), None)
    if name is None:
        raise InvalidRequestError(
            f"the receipt is of the adapter {receipt.adapter}, which is not loaded here; "
            "load it, or name its files with --enable-lora --lora-modules NAME=PATH",
            param="receipt.adapter",
            code="other_adapter",
        )
    return name


class _Comparison:
    """Sink that compares deltas with the outputs of a receipt, and ends at the first mismatch of the first output."""

    def __init__(self, receipt: Receipt) -> None:
        outputs = receipt.outputs
        self.ended = asyncio.Event()
        self.error: SplitfuseError | None = None
        self._outputs = outputs
        self._num_seen = [receipt.num_known] * len(outputs)
        self._mismatches: dict[int, Mismatch] = {}
        self._running = set(range(len(outputs)))

    @property
    def mismatch(self) -> Mismatch | None:
        """Mismatch of the first output that has one."""
        return self._mismatches[min(self._mismatches)] if self._mismatches else None

    def sink(self, delta: OutputDelta) -> None:
        """Compare a delta."""
        if self.ended.is_set() or delta.index not in self._running:
            return
        if delta.error is not None and not isinstance(delta.error, ConstraintError):
            self.error = delta.error
        elif delta.finish_reason == "abort":
            self.error = UnavailableError("the verification was cut off, so it says nothing; send the receipt again")
        if self.error is not None:
            self.ended.set()
            return
        mismatch = self._first_mismatch(delta)
        if mismatch is not None:
            self._mismatches[delta.index] = mismatch
        if mismatch is not None or self._is_over(delta):
            self._running.discard(delta.index)
        if not any(index <= min(self._mismatches, default=index) for index in self._running):
            self.ended.set()

    def _is_over(self, delta: OutputDelta) -> bool:
        """True if nothing more can be compared: an answer that a timeout cut could have gone on."""
        output = self._outputs[delta.index]
        was_cut = output.finish_reason == "timeout" and self._num_seen[delta.index] == len(output.token_ids)
        return was_cut or delta.finish_reason is not None

    def _first_mismatch(self, delta: OutputDelta) -> Mismatch | None:
        output, index = self._outputs[delta.index], delta.index
        for drawn in delta.token_ids:
            position = self._num_seen[index]
            expected = output.token_ids[position] if position < len(output.token_ids) else None
            if expected is None and output.finish_reason == "timeout":
                return None
            if drawn != expected:
                text = "the output goes on there" if expected is None else f"{drawn} follows, not {expected}"
                return Mismatch(index, position, expected, drawn, f"output {index}, token {position}: {text}")
            self._num_seen[index] += 1
        return None if delta.finish_reason is None else self._wrong_end(delta)

    def _wrong_end(self, delta: OutputDelta) -> Mismatch | None:
        output, index = self._outputs[delta.index], delta.index
        position = self._num_seen[index]
        if position < len(output.token_ids):
            expected, text = output.token_ids[position], f"the output ends before it ({delta.finish_reason})"
            return Mismatch(index, position, expected, None, f"output {index}, token {position}: {text}")
        if (delta.finish_reason, delta.stop_reason) == (output.finish_reason, output.stop_reason):
            return None
        there, here = (f"{end.finish_reason} ({end.stop_reason})" for end in (output, delta))
        text = f"output {index} ends at token {position} by {here}, not by {there}"
        return Mismatch(index, position, None, None, text)
