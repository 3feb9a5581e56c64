"""Results: the server's JSON as typed, frozen values. Keys that this version does not know are ignored."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from .errors import APIError

FINISHED = frozenset({"completed", "failed", "cancelled"})

T = TypeVar("T")


@dataclass(frozen=True)
class Output:
    """Output of a request, which has `n` of them."""

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: Any = None


@dataclass(frozen=True)
class Ranked:
    """Place of a document in the request, and its relevance."""

    index: int
    relevance_score: float


@dataclass(frozen=True)
class Usage:
    """Tokens that a request cost."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class Timings:
    """Times of a request in seconds, measured by the server; None for a phase that has not begun."""

    queue_s: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    e2e_s: float | None = None
    tokens_per_s: float | None = None
    num_preemptions: int = 0
    num_draft_tokens: int = 0  # tokens that speculative decoding proposed
    num_accepted_tokens: int = 0  # proposed tokens that were accepted


@dataclass(frozen=True)
class ErrorDetail:
    """Reason why a request failed."""

    message: str = ""
    type: str = "server_error"
    param: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class Result:
    """State of a request on the server; `text` and `token_ids` are outputs[0]'s, partial while the request runs."""

    seq_id: str
    status: str
    model: str = ""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    outputs: list[Output] = field(default_factory=list)
    usage: Usage = Usage()
    timings: Timings = Timings()
    error: ErrorDetail | None = None
    prompt_logprobs: Any = None
    receipt: dict[str, Any] | None = None  # with `receipt=True`, once the request has ended
    prompt_token_ids: list[int] | None = None  # with return_token_ids
    weights_version: int | None = None  # version of the weights that sampled the last token
    first_weights_version: int | None = None  # version that sampled the first token, if it was another one
    attempt: int = 1  # number of server processes that have run the request
    created_at: int | None = None  # Unix time; only in lists of results

    @property
    def is_finished(self) -> bool:
        """True if the request has ended."""
        return self.status in FINISHED


@dataclass(frozen=True)
class Verdict:
    """Answer to a receipt that a server has checked."""

    valid: bool
    first_mismatch: int | None = None  # position of the first token of `output` that does not follow
    output: int | None = None
    token_id: int | None = None  # the receipt's token there
    drawn_token_id: int | None = None  # the model's token there
    reason: str | None = None


def read_verdict(data: object) -> Verdict:
    """Return the verdict that JSON states. Raises APIError if the JSON is none."""
    known = _known_fields(Verdict, data)
    if not isinstance(known.get("valid"), bool):
        raise APIError("the server answered with something that is not a verdict; is this a splitfuse server?")
    return Verdict(**known)


def read_result(data: object) -> Result:
    """Return the result that JSON states. Raises APIError if the JSON is no result object."""
    known = _known_fields(Result, data)
    if not isinstance(known.get("seq_id"), str) or not isinstance(known.get("status"), str):
        raise APIError("the server answered with something that is not a result object; is this a splitfuse server?")
    known["outputs"] = [Output(**_known_fields(Output, output)) for output in known.get("outputs") or ()]
    known["usage"] = Usage(**_known_fields(Usage, known.get("usage")))
    known["timings"] = Timings(**_known_fields(Timings, known.get("timings")))
    if known.get("error") is not None:
        known["error"] = ErrorDetail(**_known_fields(ErrorDetail, known["error"]))
    return Result(**known)


def read_chat_usage(data: object) -> Usage:
    """Return the usage that OpenAI's form states; absent numbers are 0."""
    known = _known_fields(Usage, data)
    details = data.get("prompt_tokens_details") if isinstance(data, Mapping) else None
    return Usage(**known | ({"cached_tokens": details.get("cached_tokens") or 0} if details else {}))


def read_page(data: object) -> tuple[list[Result], str | None]:
    """Return a page of results, and the id after which the next page begins (None: last page). Raises APIError."""
    if not isinstance(data, Mapping) or not isinstance(data.get("data"), list):
        raise APIError("the server answered with something that is not a list of results; is this a splitfuse server?")
    after = data.get("last_id") if data.get("has_more") else None
    return list(map(read_result, data["data"])), after if isinstance(after, str) else None


def _known_fields(cls: type[T], data: object) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        return {}
    return {item.name: data[item.name] for item in fields(cls) if item.name in data}  # type: ignore[arg-type]
