"""h11's parser for servers, with exact bounds on the head of a request, and without its tolerance."""

import h11

from .strict_buffer import StrictBuffer

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
_TOO_LONG = f"the request's head is longer than {MAX_HEAD_BYTES} bytes; send shorter headers or a shorter path"


class BoundedH11(h11.Connection):
    """Parser that refuses large heads, versions other than HTTP/1 and unclear ends, however the bytes are split.

    `fault` says what was wrong with the last request if it was more than bad syntax.
    """

    fault = ""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self._receive_buffer = self._strict = StrictBuffer()

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Like h11's next_event, within the bounds. Raises RemoteProtocolError."""
        num_bytes = len(self._receive_buffer)
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as exc:
            self.fault = _TOO_LONG if exc.error_status_hint == 431 else self._strict.fault
            raise
        if isinstance(event, h11.Request):
            # h11 bounds a head only while it is incomplete.
            self.fault = _fault(event, num_bytes - len(self._receive_buffer))
            if self.fault:
                raise h11.RemoteProtocolError(self.fault)
        return event


def _fault(request: h11.Request, num_bytes: int) -> str:
    if num_bytes > MAX_HEAD_BYTES:
        return _TOO_LONG
    if len(request.headers) > MAX_HEADERS:
        return f"the request has {len(request.headers)} headers; at most {MAX_HEADERS} are taken"
    if not request.http_version.startswith(b"1."):
        return f"HTTP/{request.http_version.decode()} is not supported; send HTTP/1.1"
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
        return "the request's end is unclear: send Transfer-Encoding (in HTTP/1.1), or Content-Length, but not both"
    return ""
