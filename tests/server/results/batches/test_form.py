"""Forms: what clients send is read, whatever else is sent is refused in words."""

import asyncio
import contextlib
import errno
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from starlette.datastructures import UploadFile
from starlette.requests import Request

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.language.workers.shares import Shares
from splitfuse.server.http.errors import BodyTooLargeError, BodyTooSlowError, StoreUnavailableError
from splitfuse.server.results.batches.form import MAX_FIELDS, SPOOLED_BYTES, read_form

HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
PIECES = [
    *(b"--x", b"\r\n", b"--", b"Content-Disposition: form-data; ", b'name="file"', b"; filename*=utf-8''%ff%00a"),
    *(b"; filename*0*=x'y'z", b'; filename="\xff\xfe"', b";;==", b"name*=a", b"\r\n\r\n", b"x", b'"', b"\x00", b"\\"),
]
TYPES = [
    *("multipart/form-data; boundary=x", 'multipart/form-data; boundary="x"', "multipart/form-data; boundary=", ""),
    *("multipart/form-data; boundary=x; charset=utf-7", "multipart/form-data; boundary=x; charset=idna"),
]


def request_of(chunks: Sequence[bytes], content_type: str = TYPES[0]) -> tuple[Request, list[bytes]]:
    """Return a request whose body arrives in these chunks, and the chunks that nobody has read yet."""
    unread = list(chunks)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": unread.pop(0) if unread else b"", "more_body": bool(unread)}

    headers = [(b"content-type", content_type.encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive), unread


@contextlib.asynccontextmanager
async def form_of(request: Request, *, max_bytes: int = 2**30, **options: Any) -> AsyncIterator[Any]:
    async with read_form(
        request, max_bytes=max_bytes, setting="--max", deadline_s=5.0, arriving=Shares(2**20), **options
    ) as form:
        yield form


async def test_a_form_with_all_that_may_stand_in_one() -> None:
    head = b'--b c\r\nX-Other: 1\r\ncontent-disposition: form-data; name="a\\"b"; filename=plain\r\n\r\n\r\n--b '
    second = b'\r\n--b c\r\nContent-Disposition: form-data; name="t"\r\n\r\n\xc3\xa9\r\n--b c--\r\nepilogue'
    body = head + second
    for size in (1, 7, len(body)):
        chunks = [body[start : start + size] for start in range(0, len(body), size)]
        request, _ = request_of(chunks, 'Multipart/Form-Data; charset=utf-8; boundary="b c"')
        async with form_of(request) as form:
            file = form['a"b']
            assert isinstance(file, UploadFile)
            assert (file.filename, await file.read(), form["t"]) == ("plain", b"\r\n--b ", "é")
        assert file.file.closed


async def test_nothing_else_gets_through() -> None:
    rng = random.Random(1)
    num_read = 0
    for _ in range(3000):
        body = b"".join(rng.choice(PIECES) for _ in range(rng.randint(0, 25)))
        if rng.random() < 0.5:
            body = HEAD + body + b"\r\n--x--"
        with contextlib.suppress(InvalidRequestError):
            async with form_of(request_of([body], rng.choice(TYPES))[0]) as form:
                num_read += 1
                for name, value in form.multi_items():  # hold no surrogates
                    (name + (value if isinstance(value, str) else value.filename)).encode()
    assert num_read > 100


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([HEAD, b"cut", b" short"], "the last delimiter is missing"),
        ([HEAD, b"cut short\r\n--x"], "the last delimiter is missing"),
        ([HEAD.replace(b"name=", b"nome="), b"more", b"more\r\n--x--"], "name"),
        ([*([HEAD + b"\r\n"] * (MAX_FIELDS + 1)), b"--x--"], "Too many"),
        ([b"preamble\r\n", HEAD, b"\r\n--x--"], "Invalid"),
    ],
)
async def test_a_refused_form_is_read_to_its_end(chunks: list[bytes], message: str) -> None:
    request, unread = request_of(chunks)
    with pytest.raises(InvalidRequestError, match=message):
        async with form_of(request):
            pass
    assert not unread, "a client that is still writing would not read the answer"


async def test_a_large_file_goes_to_the_disk() -> None:
    chunks = [HEAD, *[bytes(SPOOLED_BYTES // 4)] * 8, b"\r\n--x--"]
    async with form_of(request_of(chunks)[0]) as form:
        assert form["file"].size == 2 * SPOOLED_BYTES
        assert form["file"].file._rolled


async def test_a_file_that_is_too_long_is_refused_while_it_arrives() -> None:
    request, unread = request_of([HEAD, *[bytes(2**20)] * 20, b"\r\n--x--"])
    with pytest.raises(BodyTooLargeError, match="--max"):
        async with form_of(request, max_bytes=2**20):
            pass
    assert len(unread) > 9, "8 MiB beyond the limit are dropped, the rest is not read"


async def test_a_file_that_never_ends_is_too_slow() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    request = Request({"type": "http", "headers": [(b"content-type", TYPES[0].encode())]}, receive)
    with pytest.raises(BodyTooSlowError):
        async with read_form(request, max_bytes=99, setting="--max", deadline_s=0.01, arriving=Shares(99)):
            pass


async def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("starlette.formparsers.SpooledTemporaryFile", full)
    with pytest.raises(StoreUnavailableError, match="No space left on device"):
        async with form_of(request_of([HEAD, b"\r\n--x--"])[0]):
            pass
