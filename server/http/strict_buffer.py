"""h11's buffer of received bytes, without its tolerance: lines that proxies may see otherwise are refused.

A proxy and a server that find different ends of a request can be made to see different requests (request smuggling).
"""

import h11
from h11._receivebuffer import ReceiveBuffer

BARE_LF = "a line ends with LF alone; end lines with CR LF"
FOLD = "a header goes on in the next line; write each header in one line"
CHUNK_SIZE = "a chunk's size is followed by a space or a bare CR; send the digits and CR LF"


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
            self._refuse_if(head.count(b"\n") != head.count(b"\r\n"), BARE_LF)
            self._refuse_if(b"\n " in head or b"\n\t" in head, FOLD)
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Like h11's, for the head of a chunk, without space behind the size."""
        line = super().maybe_extract_next_line()
        if line is not None:
            text = line[:-2]
            self._refuse_if(text.endswith((b" ", b"\t")) or b"\r" in text, CHUNK_SIZE)
        return line

    def _extract(self, count: int) -> bytearray:
        self._last = super()._extract(count)
        return self._last

    def _refuse_if(self, is_refused: bool, fault: str) -> None:
        if is_refused:
            self.fault = fault
            raise h11.LocalProtocolError(fault)
