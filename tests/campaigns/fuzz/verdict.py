"""Verdict on a server's answer to a case."""

import http.client
import socket
import time
from dataclasses import dataclass

from fuzz.cases import Case
from served import Served

LIMIT_S = 5.0  # limit of an answer


@dataclass(frozen=True)
class Verdict:
    """Verdict: `status` of the answer, None without one; `fault` of the server, None if there is none."""

    case: Case
    status: int | None
    fault: str | None = None


def verdict(served: Served, case: Case, *, limit_s: float = LIMIT_S, has_proxy: bool = False) -> Verdict:
    """Send a case on its own connection. An answer must come whole, within `limit_s`, and be no 5xx but 503.

    `has_proxy`: HAProxy stands before the server, and may make a request's end clear where the server would refuse.
    """
    start = time.monotonic()
    with served.connect(timeout=limit_s) as connection:
        connection.settimeout(limit_s)
        try:
            _send(connection, case.data)
            if case.kind == "framing":
                return _of_framing(case, connection, is_clear=has_proxy)
            answer = http.client.HTTPResponse(connection, method="HEAD" if case.asks_head else "POST")
            answer.begin()
            body = answer.read()
        except TimeoutError:
            return _silent(served, case, limit_s)
        except (http.client.HTTPException, OSError) as exc:
            return Verdict(case, None, f"no whole answer: {type(exc).__name__}: {str(exc)[:200]}")
    if answer.status >= 500 and answer.status != 503:
        return Verdict(case, answer.status, f"{answer.status}: {body[:300]!r}")
    if b'"server_error"' in body or b'"api_error"' in body:
        return Verdict(case, answer.status, f"a failure in a stream: {body[-300:]!r}")
    seconds = time.monotonic() - start
    return Verdict(case, answer.status, f"took {seconds:.1f} s" if seconds > limit_s else None)


def _of_framing(case: Case, connection: socket.socket, *, is_clear: bool) -> Verdict:
    """Judge the answer to a request whose end is unclear: a refusal, and the connection's end. Raises TimeoutError."""
    raw = b""
    while part := connection.recv(65536):
        raw += part
    status = int(raw[9:12]) if raw[9:12].isdigit() else None
    if raw.count(b"HTTP/1.1 ") > 1 + is_clear:  # where the end is clear, the second request is a request
        return Verdict(case, status, f"a second answer: {raw[-300:]!r}")
    is_refused = is_clear or status == 501 or (status is not None and 400 <= status < 500)
    return Verdict(case, status, None if is_refused else f"{status} for a request whose end is unclear")


def _send(connection: socket.socket, data: bytes) -> None:
    """Send all bytes; a server may answer and close before it has read them."""
    try:
        connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return


def _silent(served: Served, case: Case, limit_s: float) -> Verdict:
    """Judge silence: the server rightly waits for a body that the case's head announces and never sends."""
    is_waiting = case.kind == "head" and served.status("/health", timeout=limit_s) == 200
    return Verdict(case, None, None if is_waiting else f"no answer in {limit_s:g} s")
