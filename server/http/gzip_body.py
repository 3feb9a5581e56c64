"""Bodies with Content-Encoding: gzip, unpacked in pieces, so that a bomb takes neither memory nor the event loop."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator

from ...engine.errors import InvalidRequestError, SplitfuseError

PIECE_BYTES = 64 * 2**10
_GZIP = zlib.MAX_WBITS | 16


async def unpacked(
    chunks: AsyncIterator[bytes], *, max_bytes: int, max_dropped: int, too_large: SplitfuseError
) -> AsyncGenerator[bytes, None]:
    """Yield the content of a body; the reader stops when it has enough.

    Raises InvalidRequestError, and `too_large` after `max_bytes` of packed bytes, which may have no content. Before
    that `max_dropped` bytes are read: a client that is still writing does not read.
    """
    try:
        async for piece in _pieces(chunks, max_bytes=max_bytes, too_large=too_large):
            yield piece
    except SplitfuseError:
        async for chunk in chunks:
            max_dropped -= len(chunk)
            if max_dropped < 0:
                break
        raise


async def _pieces(
    chunks: AsyncIterator[bytes], *, max_bytes: int, too_large: SplitfuseError
) -> AsyncGenerator[bytes, None]:
    inflater = zlib.decompressobj(_GZIP)
    num_packed = 0
    async for chunk in chunks:
        num_packed += len(chunk)
        if num_packed > max_bytes:
            raise too_large
        left = chunk
        while left:
            yield _piece(inflater, left)
            left = inflater.unconsumed_tail
            await asyncio.sleep(0)
    if not inflater.eof:
        raise InvalidRequestError("the body ends within its gzip stream; was it cut?")


def _piece(inflater: "zlib._Decompress", packed: bytes) -> bytes:
    try:
        piece = inflater.decompress(packed, PIECE_BYTES)
    except zlib.error as exc:
        raise InvalidRequestError(f"the body's Content-Encoding is gzip, but its bytes are not: {exc}") from exc
    if inflater.unused_data:
        raise InvalidRequestError("the body goes on behind its gzip stream")
    return piece
