"""Requests to the native routes: the body of POST /generate, and parameters in the path, query and headers."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

from fastapi import Header, Path, Query
from pydantic import Field

from ....engine.errors import InvalidRequestError
from ...service import Service
from ..parameters import DIGITS, EventId, event_id, says
from ..prompt import Prompt, without_special_tokens
from ..sampling_request import SamplingRequest

KIND = "generate"  # kind of kept requests
MAX_WAIT_S = 60
MAX_LISTED = 100

SeqId = Annotated[str, Path(description="The id from POST /generate; it begins with the server's `--id-tag`.")]
Wait = Annotated[
    float,
    Field(ge=0, le=MAX_WAIT_S),
    says(f"must be a number of seconds from 0 to {MAX_WAIT_S}"),
    Query(description="Seconds to wait for the complete result."),
]
Prefer = Annotated[
    list[str] | None, Header(alias="Prefer", description="`wait=N`: wait up to N seconds for the complete result.")
]
StartingAfter = Annotated[EventId, Query(description="Id of the reader's last event.")]
LastEventId = Annotated[
    EventId, Header(alias="Last-Event-ID", description="Like `starting_after`, as browsers send it; the header wins.")
]
Limit = Annotated[
    int,
    Field(ge=1, le=MAX_LISTED),
    DIGITS,
    says(f"must be an integer from 1 to {MAX_LISTED}"),
    Query(description="The most results."),
]
After = Annotated[str | None, Query(description="Id of the last result of the previous page.")]
_Status = Literal["queued", "running", "completed", "failed", "cancelled"]
Status = Annotated[
    _Status | None,
    says(f"must be one of {', '.join(get_args(_Status))}"),
    Query(description="Only results with this status."),
]


class GenerateRequest(SamplingRequest):
    """A prompt to continue. With `stream` the answer is a stream of events."""

    example: ClassVar = {"prompt": "Once upon a time", "max_tokens": 32, "stream": False}
    default_max_tokens = 64
    prompt: Prompt
    add_special_tokens: bool = True
    return_token_ids: Annotated[bool, Field(description="Return the prompt's token ids beside the answer's.")] = False
    ttl_s: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="Seconds to keep the result.")] = None
    durable: Annotated[bool, Field(description="Keep a stream like a job, on a server with results on disk.")] = False

    @classmethod
    def _renamed(cls, service: Service, fields: dict[str, Any]) -> dict[str, Any]:
        if "inputs" in fields and "prompt" not in fields:
            raise InvalidRequestError("unknown field 'inputs'; did you mean prompt?", param="inputs")
        return fields

    def engine_prompt(self) -> Any:
        """Return the prompt in the engine's form."""
        return self.prompt if self.add_special_tokens else without_special_tokens(self.prompt)


def preferred_wait_s(prefer: Sequence[str] | None) -> float:
    """Return the seconds that a Prefer header (RFC 7240) asks to wait, 0 without a wish. Other wishes are ignored."""
    preferences = [part.strip().partition("=") for header in prefer or () for part in header.lower().split(",")]
    waits = [value.strip().strip('"') for name, _, value in preferences if name.strip() == "wait"]
    return float(waits[0]) if waits and waits[0].isascii() and waits[0].isdigit() and len(waits[0]) < 10 else 0.0


def last_event(last_event_id: str | None, starting_after: str | None) -> int:
    """Return the id of the reader's last event, -1 for none. The header is newer than the URL, so it wins. Raises."""
    if last_event_id:
        return event_id(last_event_id, name="Last-Event-ID")
    return event_id(starting_after, name="starting_after") if starting_after else -1
