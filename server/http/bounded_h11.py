"""h11's parser for servers, with exact bounds on the head of a request, and without its tolerance.

A proxy and a server that find different ends of a request can be made to see different requests (request smuggling).
"""

import re

import h11
from h11._receivebuffer import ReceiveBuffer

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
_TOO_LONG = f"the request's head is longer than {MAX_HEAD_BYTES} bytes; send shorter headers or a shorter path"
_BARE_LF = "a line ends with LF alone; end lines with CR LF"
_FOLD = "a header goes on in the next line; write each header in one line"
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_CHUNK_SIZE = "a chunk's size is followed by a space or a bare CR; send the digits and CR LF"


class StrictBuffer(ReceiveBuffer):
    """Buffer that raises LocalProtocolError, as h11's parsers do, and notes the `fault`."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = ""
        self._last = bytearray()  # the bytes extracted last

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Like h11's, for a head or trailers, with CR LF only and no folded line."""
        lines = super().maybe_extract_lines()
        if lines is not None:
            head, self._last = self._last, bytearray()
            self._refuse_if(head.count(b"\n") != head.count(b"\r\n"), _BARE_LF)
            self._refuse_if(b"\n " in head or b"\n\t" in head, _FOLD)
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Like h11's, for the head of a chunk, without space behind the size."""
        line = super().maybe_extract_next_line()
        if line is not None:
            text = line[:-2]
            self._refuse_if(text.endswith((b" ", b"\t")) or b"\r" in text, _CHUNK_SIZE)
        return line

    def _extract(self, count: int) -> bytearray:
        self._last = super()._extract(count)
        return self._last

    def _refuse_if(self, is_refused: bool, fault: str) -> None:
        if is_refused:
            self.fault = fault
            raise h11.LocalProtocolError(fault)


class BoundedH11(h11.Connection):
    """Parser that refuses large heads, versions other than HTTP/1 and unclear ends, however the bytes are split.

    `fault` names the last request's fault if it was more than bad syntax.
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
            return _in_origin_form(event)
        return event


def _in_origin_form(request: h11.Request) -> h11.Request:
    """Return the request with a path for its target. An absolute target's host replaces Host (RFC 9112, 3.2.2)."""
    found = _ABSOLUTE.match(request.target)
    if found is None:
        return request
    headers = [(name, found[1] if name == b"host" else value) for name, value in request.headers]
    target = found[2] if found[2].startswith(b"/") else b"/" + found[2]
    return h11.Request(method=request.method, headers=headers, target=target, http_version=request.http_version)


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
