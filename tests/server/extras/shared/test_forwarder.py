"""Forwarded requests, and the caller's headers that they keep."""

import httpx
from starlette.requests import Request

from splitfuse.server.extras.shared.forwarder import FORWARDED, _forwarded


async def test_a_preference_to_wait_reaches_the_other_server() -> None:
    headers = [(b"prefer", b"wait=20"), (b"authorization", b"Bearer k"), (b"cookie", b"no")]
    scope = {"type": "http", "method": "GET", "path": "/result/a", "raw_path": b"/result/a", "query_string": b"wait=1"}
    request = Request({**scope, "headers": headers, "scheme": "http", "server": ("here", 80)})
    async with httpx.AsyncClient() as client:
        sent = _forwarded(client, request, "http://there:1")
    assert str(sent.url) == "http://there:1/result/a?wait=1"
    assert sent.headers["prefer"] == "wait=20"
    assert sent.headers["authorization"] == "Bearer k"
    assert sent.headers[FORWARDED] == "1"
    assert "cookie" not in sent.headers
