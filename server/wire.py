"""How values become JSON bytes: compact and pure ASCII, so that no string can fail to encode."""

import json
from typing import Any

from starlette.responses import JSONResponse


def dumps(value: object) -> str:
    """Compact JSON. Escapes everything beyond ASCII; refuses NaN and infinities (ValueError)."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class JsonResponse(JSONResponse):
    """A JSON answer written by `dumps`."""

    def render(self, content: Any) -> bytes:
        """The body's bytes."""
        return dumps(content).encode("ascii")
