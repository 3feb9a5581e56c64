"""Metrics of all models in memory on one page, each with its model's name as the label `replica`."""

import asyncio
import contextlib

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ..replicas.operations import merged
from .connections import LOST
from .model_process import ModelProcess
from .router import Router


async def page(router: Router, *, prefix: str) -> Response:
    """Build the page."""
    texts = await asyncio.gather(*(_text(router.process_of(name)) for name in router.catalog.entries))
    pages = dict(zip(router.catalog.entries, texts, strict=True))
    return Response(merged(pages, prefix=prefix), media_type=CONTENT_TYPE_LATEST)


async def _text(process: ModelProcess | None) -> str | None:
    """Return a process's own page; None without an answer."""
    if process is not None:
        with contextlib.suppress(*LOST):
            status, body = await process.get("/metrics")
            return body.decode() if status == 200 else None
    return None
