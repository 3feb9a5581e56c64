"""TgiPart: POST /generate with TGI's body, which the server's own route hands over."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...api.native.request import ForeignBodyError
from ...extension import Part


class TgiPart(Part):
    """Part without state of its own."""

    def exception_handlers(self) -> Mapping[type[Exception], Any]:
        """Answer TGI's bodies of the server's own route."""
        return {ForeignBodyError: _answer}


async def _answer(request: Request, exc: ForeignBodyError) -> Response:
    from .routes import generate_by_inputs  # here: few servers see TGI's clients

    return await generate_by_inputs(request, exc.fields)
