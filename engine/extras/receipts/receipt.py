"""Receipt: the statement that a model gave these tokens to this request, under one SHA-256.

    {"version": 1, "model": "…", "created": …,
     "weights": "sha256:…", "tokenizer": "sha256:…" or null, "template": "sha256:…" or null,
     "arithmetic": {"class": "cpu float32 …", "version": 1},
     "adapter": "sha256:…",
     "parent": {"seq_id": "…", "output": …, "at": …, "num_appended": …, "request": {…}, "seed": "…"},
     "request": {…}, "seed": "…", "prompt_token_ids": […],
     "outputs": [{"token_ids": […], "finish_reason": "…", "stop_reason": …}, …],
     "sha256": "…"}

The hash covers the canonical form (canonical.py) of all fields but the last. The seed is text, because it can be beyond
the integers of a double. Only an adapter's answer has `adapter`, and only a fork `parent`: the answer whose first `at`
tokens it kept, with what decided them; `num_appended` tokens behind were given. `model` and `created` are labels:
nothing can check them. A receipt of an earlier version may have a `signature`, which is not read.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...checks import check_text
from ...core.sampling_params import SamplingParams
from ...errors import InvalidRequestError
from .canonical import canonical
from .identity import Identity
from .request_fields import read_params, request_fields

VERSION = 1
_MAX_PARENTS = 100
_PARENT = ("seq_id", "output", "at", "num_appended", "request", "seed")
_FIELDS = ("version", "model", "created", "request", "seed", "prompt_token_ids", "outputs", "sha256")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_SEED = re.compile(r"-?(0|[1-9][0-9]{0,19})")
_REASONS = ("stop", "length", "timeout")
MAX_TOKEN_ID = 2**31 - 1


@dataclass(frozen=True)
class ReceiptOutput:
    """Output of a receipt. `finish_reason`: stop, length or timeout; after a timeout the answer could have gone on."""

    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: int | str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the output as JSON values."""
        return {"token_ids": list(self.token_ids), "finish_reason": self.finish_reason, "stop_reason": self.stop_reason}


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Receipt of an answer. Equal content has equal hashes."""

    model: str
    created: int
    identity: Identity
    request: Mapping[str, Any]
    seed: int
    prompt_token_ids: Sequence[int]
    outputs: Sequence[ReceiptOutput]
    adapter: str | None = None  # hash of the adapter's files
    parent: Mapping[str, Any] | None = None
    claimed_sha256: str | None = None  # hash that was read; None for a receipt that was made here

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        *,
        model: str,
        created: int,
        identity: Identity,
        seed: int,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        outputs: Sequence[ReceiptOutput],
        parent: Mapping[str, Any] | None = None,
    ) -> "Receipt":
        """Make the receipt of a complete answer to these parameters, whose defaults are filled in."""
        return cls(
            model=model,
            created=created,
            identity=identity,
            request=request_fields(params, max_tokens=max_tokens),
            seed=seed,
            prompt_token_ids=prompt_token_ids,
            outputs=outputs,
            adapter=None if params.adapter is None else f"sha256:{params.adapter.digest}",
            parent=parent,
        )

    @classmethod
    def read(cls, value: object) -> "Receipt":
        """Read a receipt strictly; the hash is not compared yet. Raises InvalidRequestError."""
        fields = _object(value, "receipt", (*_FIELDS, *Identity.FIELDS), optional=("adapter", "parent", "signature"))
        if fields["version"] != VERSION or type(fields["version"]) is not int:
            raise _wrong("version", f"is not {VERSION}, the version that this server reads")
        outputs = fields["outputs"]
        if not isinstance(outputs, list) or not outputs:
            raise _wrong("outputs", "must be a list of at least one output")
        receipt = cls(
            model=_text(fields, "model"),
            created=_natural(fields["created"], "created", most=2**53 - 1),
            identity=Identity.read(fields),
            request=_request(fields),
            seed=_seed(fields),
            prompt_token_ids=_token_ids(fields["prompt_token_ids"], "prompt_token_ids"),
            outputs=[_output(item, f"outputs[{index}]") for index, item in enumerate(outputs)],
            adapter=_adapter(fields),
            parent=fields.get("parent"),
            claimed_sha256=_text(fields, "sha256"),
        )
        for level in receipt.levels:
            level._check_normal_form()
        return receipt

    @property
    def levels(self) -> Iterator["Receipt"]:
        """The receipt, then those of a fork's parent, of its parent, …, each of the tokens that are left of it.

        Raises InvalidRequestError.
        """
        level = self
        for _ in range(_MAX_PARENTS):
            yield level
            if level.parent is None:
                return
            fields = _object(level.parent, "receipt.parent", _PARENT, optional=("adapter", "parent"))
            _text(fields, "seq_id")
            for name in ("output", "at", "num_appended"):
                _natural(fields[name], f"parent.{name}", most=MAX_TOKEN_ID)
            level = replace(
                level,
                request=_request(fields),
                seed=_seed(fields),
                outputs=[ReceiptOutput(level.outputs[0].token_ids[: fields["at"]], "timeout")],
                adapter=_adapter(fields),
                parent=fields.get("parent"),
            )
        raise _wrong("parent", f"has more than {_MAX_PARENTS} parents")

    @property
    def num_known(self) -> int:
        """Number of tokens that were not sampled: those that a fork began with."""
        kept = 0 if self.parent is None else self.parent["at"] + self.parent["num_appended"]
        return min(kept, len(self.outputs[0].token_ids))

    @property
    def has_sampled(self) -> bool:
        """False if a fork's parent or given tokens are all that it states."""
        return self.num_known < len(self.outputs[0].token_ids) or self.outputs[0].finish_reason != "timeout"

    def _check_normal_form(self) -> None:
        params = self.params
        if self.parent is not None and params.n != 1:
            raise _wrong("parent", "is that of a fork, which has one output")
        if len(self.outputs) != params.n:
            raise _wrong("outputs", f"holds {len(self.outputs)} outputs of the {params.n} that n asks for")
        normal = request_fields(params, max_tokens=self.max_tokens)
        if (
            wrong := next((name for name in normal if not _is_equal(normal[name], self.request[name])), None)
        ) is not None:
            raise _wrong(f"request.{wrong}", "is not in the form in which receipts have it")

    @cached_property
    def params(self) -> SamplingParams:
        """Sampling parameters, with the seed. Raises InvalidRequestError."""
        return read_params(self.request, seed=self.seed)

    @property
    def max_tokens(self) -> int:
        """Most tokens that an output could have."""
        return int(self.request["max_tokens"])

    @cached_property
    def sha256(self) -> str:
        """Hash of the content, in hexadecimal. Raises InvalidRequestError for numbers beyond JSON's."""
        try:
            return hashlib.sha256(canonical(self._content())).hexdigest()
        except ValueError as exc:
            raise _wrong("request", str(exc)) from exc

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt as JSON values."""
        return self._content() | {"sha256": self.sha256}

    def _content(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "model": self.model,
            "created": self.created,
            **self.identity.to_dict(),
            **({} if self.adapter is None else {"adapter": self.adapter}),
            **({} if self.parent is None else {"parent": self.parent}),
            "request": self.request,
            "seed": str(self.seed),
            "prompt_token_ids": list(self.prompt_token_ids),
            "outputs": [output.to_dict() for output in self.outputs],
        }


def _wrong(name: str, finding: str) -> InvalidRequestError:
    return InvalidRequestError(f"receipt.{name} {finding}", param=f"receipt.{name}", code="receipt_malformed")


def _object(value: object, name: str, known: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{name} must be an object", param="receipt", code="receipt_malformed")
    if wrong := sorted({*known} ^ (value.keys() - {*optional})):
        finding = "is missing" if wrong[0] in known else "is not a field of a receipt"
        raise InvalidRequestError(f"{name}.{wrong[0][:100]} {finding}", param="receipt", code="receipt_malformed")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    if not isinstance(fields[name], str):
        raise _wrong(name, "must be a string")
    check_text(fields[name], param=f"receipt.{name}")
    return str(fields[name])


def _adapter(fields: Mapping[str, Any]) -> str | None:
    if "adapter" not in fields:
        return None
    if not _HASH.fullmatch(text := _text(fields, "adapter")):
        raise _wrong("adapter", "must be sha256: and 64 hexadecimal digits")
    return text


def _seed(fields: Mapping[str, Any]) -> int:
    seed = _text(fields, "seed")
    if not _SEED.fullmatch(seed) or seed == "-0":
        raise _wrong("seed", "must be an integer as text")
    return int(seed)


def _request(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    request = fields["request"]
    if not isinstance(request, dict):
        raise _wrong("request", "must be an object")
    return request


def _natural(value: object, name: str, *, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise _wrong(name, f"must be an integer from 0 to {most}")
    return value


def _token_ids(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MAX_TOKEN_ID for item in value):
        raise _wrong(name, "must be a list of token ids")
    return tuple(value)


def _output(value: object, name: str) -> ReceiptOutput:
    fields = _object(value, f"receipt.{name}", ("token_ids", "finish_reason", "stop_reason"))
    if fields["finish_reason"] not in _REASONS:
        raise _wrong(f"{name}.finish_reason", f"must be one of {', '.join(_REASONS)}")
    stop = fields["stop_reason"]
    if isinstance(stop, str):
        check_text(stop, param=f"receipt.{name}.stop_reason")
    elif stop is not None:
        _natural(stop, f"{name}.stop_reason", most=MAX_TOKEN_ID)
    token_ids = _token_ids(fields["token_ids"], f"{name}.token_ids")
    return ReceiptOutput(token_ids, fields["finish_reason"], stop)


def _is_equal(normal: object, given: object) -> bool:
    try:
        return canonical(normal) == canonical(given)
    except (ValueError, TypeError, RecursionError):
        return False
