"""Forms: reads a multipart/form-data body (RFC 7578) while it arrives, and spools its files to temporary files."""

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ....engine.errors import InvalidRequestError, QueueFullError
from ....engine.language.workers.shares import Shares, sharer
from ...http.errors import StoreUnavailableError
from ...http.json_body import body_chunks, in_time

MAX_FIELDS = 16
SPOOLED_BYTES = 2**20  # bytes of a file in memory before it goes to the disk
_RETRY_S = 5.0
_BOUNDARY = re.compile(r"[\w'()+,./:=? -]{1,70}", re.ASCII)


@contextlib.asynccontextmanager
async def read_form(
    request: Request, *, max_bytes: int, setting: str, deadline_s: float, arriving: Shares
) -> AsyncIterator[FormData]:
    """Read a form while it arrives; its files are closed at the end. `setting` is the limit's name in errors.

    `arriving` counts the bytes until then. Raises InvalidRequestError, BodyTooLargeError, BodyTooSlowError,
    QueueFullError, StoreUnavailableError.
    """
    owner, num_bytes = sharer(), 0

    async def counted() -> AsyncGenerator[bytes, None]:
        nonlocal num_bytes
        chunks = body_chunks(request, max_bytes=max_bytes, setting=setting)
        async for chunk in chunks:
            num_bytes += len(chunk)
            arriving.held[owner] += len(chunk)
            if arriving.held[owner] > num_bytes and arriving.room(owner) < 0:  # alone, any upload fits
                async for _ in chunks:  # a client that is still writing does not read
                    pass
                raise QueueFullError(
                    "too many uploads arrive at once; send one after the other", retry_after_s=_RETRY_S
                )
            yield chunk

    try:
        form = await in_time(_read(request.headers.get("content-type", ""), counted()), deadline_s)
        try:
            yield form
        finally:
            await form.close()
    finally:
        arriving.held[owner] -= num_bytes


async def _read(content_type: str, chunks: AsyncGenerator[bytes, None]) -> FormData:
    try:
        return await _parse(content_type, chunks)
    except MultiPartException as exc:
        refusal: Exception = InvalidRequestError(f"the form cannot be read: {exc.message}")
    except InvalidRequestError as exc:
        refusal = exc
    except OSError as exc:
        refusal = StoreUnavailableError(f"the upload cannot be written to a temporary file: {exc.strerror}")
    async for _ in chunks:  # a client that is still writing does not read
        pass
    raise refusal


async def _parse(content_type: str, chunks: AsyncGenerator[bytes, None]) -> FormData:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"").decode("latin-1")
    if kind != b"multipart/form-data" or not _BOUNDARY.fullmatch(boundary):
        raise InvalidRequestError("send the file as multipart/form-data, as `curl -F file=@FILE` does", param="file")
    # Without a charset: some of Python's codecs decode to lone surrogates.
    headers = Headers({"content-type": f'multipart/form-data; boundary="{boundary}"'})
    parser = _Parser(headers, chunks, max_files=MAX_FIELDS, max_fields=MAX_FIELDS)
    parser.spool_max_size = SPOOLED_BYTES
    async with contextlib.aclosing(parser.whole(chunks)) as parser.stream:
        return await parser.parse()


class _Parser(MultiPartParser):
    """Parser of whole forms only; Starlette's parser accepts a form that was cut short."""

    _has_ended = False

    def on_end(self) -> None:
        """Note that the last delimiter has come."""
        self._has_ended = True

    async def whole(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Yield the chunks. Raises MultiPartException if they do not end the form; the parser then closes its files."""
        async for chunk in chunks:
            yield chunk
        if not self._has_ended:
            raise MultiPartException("the last delimiter is missing")
