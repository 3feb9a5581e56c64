"""The body of POST /stats/simulate."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ...api.request_model import RequestModel

MAX_ARRIVALS = 256
MAX_TOKENS = 131_072  # per request
_Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
_Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
_Arrival = Annotated[tuple[_Seconds, _Tokens, _Tokens], Field(strict=False)]  # JSON has no tuples


class SimulateRequest(RequestModel):
    """Requests as (seconds from the first one, prompt tokens, output tokens), and the policies to compare."""

    example: ClassVar = {"policies": ["splitfuse", "prefill_first"], "arrivals": [[0.0, 512, 64], [0.25, 2000, 16]]}
    policies: Annotated[
        list[Literal["splitfuse", "prefill_first", "decode_first", "static"]], Field(min_length=1, max_length=4)
    ]
    arrivals: Annotated[list[_Arrival], Field(min_length=1, max_length=MAX_ARRIVALS)]
