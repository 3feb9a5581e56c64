"""Files: users' uploads for batches, and the batches' output."""

import asyncio
import dataclasses
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import BinaryIO

from ....engine.errors import InvalidRequestError
from ....engine.language.workers.shares import Shares, most_of
from ...api.listing import Page
from ...http.errors import FileTooLargeError, ResultNotFoundError, StoreUnavailableError
from ...jobs.job import new_id
from ..durable.batch_rows import BatchChanges, FileRow
from ..durable.memory_store import StoreUser
from ..durable.store import Store, has_id_form
from . import BatchSettings
from .lines import longest_line

PURPOSE = "batch"  # purpose of uploads
OUTPUT_PURPOSE = "batch_output"
PART_BYTES = 128 * 1024  # per write, so that other writes of the store's thread come between
_PARTS_AT_ONCE = 16


class Files:
    """Files of all owners."""

    def __init__(self, store: StoreUser, settings: BatchSettings, *, clock: Callable[[], float]) -> None:
        """`clock` returns wall clock seconds."""
        self._store = store
        self._settings = settings
        self._clock = clock
        self.arriving = Shares(settings.max_total_file_bytes)  # bytes of uploads
        self.outputs = Counter[tuple[str, str]]()  # bytes that running batches have written, by owner and batch

    async def add(self, contents: BinaryIO, *, owner: str, filename: str, ttl_s: float | None = None) -> FileRow:
        """Store an upload. Raises InvalidRequestError, FileTooLargeError, StoreUnavailableError."""
        num_bytes = await asyncio.to_thread(contents.seek, 0, os.SEEK_END)
        if num_bytes > (most := self._settings.max_file_bytes):
            raise FileTooLargeError(f"the file has {num_bytes} bytes; split it, or raise --max-file-bytes above {most}")
        await self.check_room(num_bytes, owner=owner)
        num_lines = await self._num_lines(contents)
        file = self.new(owner, filename, PURPOSE, ttl_s=ttl_s)
        file = dataclasses.replace(file, num_bytes=num_bytes, num_lines=num_lines)
        check = self._check_of(owner)
        await self._store.use(partial(_add, file=file, check=check))
        await asyncio.to_thread(contents.seek, 0)
        for number in range(-(-num_bytes // PART_BYTES)):
            part = await asyncio.to_thread(contents.read, PART_BYTES)
            await self._write(BatchChanges(parts=((file.file_id, number, part),)))
        return await self._complete(dataclasses.replace(file, state="ready"))

    async def _complete(self, file: FileRow) -> FileRow:
        await self._write(BatchChanges(files=(file,)))
        stored = await self._store.use(lambda store: store.find_file(file.file_id))
        if stored is None or stored.state != file.state:  # other servers declared this one dead meanwhile
            raise StoreUnavailableError("the upload was cut short")
        return stored

    def new(self, owner: str, filename: str, purpose: str, *, ttl_s: float | None = None) -> FileRow:
        """Create a file without contents, under an id that cannot be guessed. It is not written yet."""
        now, longest = self._clock(), self._settings.file_ttl
        expires = now + min(ttl_s or longest, longest)
        return FileRow(new_id("file-", self._settings.id_tag), owner, now, expires, purpose, filename, 0, 0, "partial")

    async def find(self, file_id: str, *, owner: str) -> FileRow:
        """Find the owner's file. Raises ResultNotFoundError, which never gives the reason."""
        file = await self._store.use(lambda store: store.find_file(file_id)) if has_id_form(file_id) else None
        if file is None or file.owner != owner or file.state != "ready" or file.expires <= self._clock():
            raise ResultNotFoundError("file")
        if file.purpose not in (PURPOSE, OUTPUT_PURPOSE):
            raise ResultNotFoundError("file")
        return file

    async def list(self, owner: str, page: Page, *, purpose: str | None = None) -> list[FileRow]:
        """Return a page of the owner's files."""
        now = self._clock()
        return await self._store.use(lambda store: store.list_files(owner, page, now=now, purpose=purpose))

    async def delete(self, file: FileRow) -> None:
        """Delete the file. Its space becomes free a little later."""
        await self._write(BatchChanges(files=(dataclasses.replace(file, state="deleted"),)))

    async def contents(self, file_id: str) -> AsyncGenerator[bytes, None]:
        """Yield a file's contents in pieces."""
        after = -1
        while parts := await self._store.use(partial(_parts, file_id=file_id, after=after)):
            after = parts[-1][0]
            yield b"".join(body for _, body in parts)

    async def lines(self, file_id: str) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield the non-empty lines of an upload, with their numbers from 1."""
        number, rest = 0, b""
        async for piece in self.contents(file_id):
            *whole, rest = (rest + piece).split(b"\n")
            for number, line in enumerate(whole, start=number + 1):  # noqa: B020  counts on
                if line.strip():
                    yield number, line
        if rest.strip():
            yield number + 1, rest

    async def _num_lines(self, contents: BinaryIO) -> int:
        num_lines, longest = await asyncio.to_thread(longest_line, contents)
        if longest > (most := self._settings.max_body_bytes):
            raise InvalidRequestError(
                f"a line has {longest} bytes; split it, or raise --max-body-bytes above {most}", param="file"
            )
        return num_lines

    async def check_room(self, num_bytes: int, *, owner: str) -> None:
        """Raise FileTooLargeError unless the owner may have so many bytes more."""
        await self._store.use(partial(self._check_of(owner), num_bytes=num_bytes))

    def _check_of(self, owner: str) -> Callable[..., None]:
        """Return a check of the owner's files with `num_bytes` more, for the store's thread."""
        is_divided, limit = self._settings.has_several_keys, self._settings.max_total_file_bytes
        num_written = sum(num for (name, _), num in self.outputs.items() if name == owner)
        num_written_by_all = self.outputs.total()

        def check(store: Store, *, num_bytes: int) -> None:
            num_own = store.num_file_bytes(owner) + num_written
            num_all = store.num_file_bytes() + num_written_by_all
            most = most_of(limit, num_own=num_own, num_all=num_all, is_divided=is_divided)
            if num_own + num_bytes > most:
                raise FileTooLargeError(
                    f"your files have {num_own} bytes, with this one more than {most}; delete some, or raise "
                    f"--max-total-file-bytes above {limit}"
                )

        return check

    async def _write(self, changes: BatchChanges) -> None:
        await self._store.use(lambda store: store.write_batches(changes))


def _add(store: Store, *, file: FileRow, check: Callable[..., None]) -> None:
    """Write the file's row if there is room still: the lines of several uploads are counted at once."""
    check(store, num_bytes=file.num_bytes)
    store.write_batches(BatchChanges(files=(file,)))


def _parts(store: Store, *, file_id: str, after: int) -> list[tuple[int, bytes]]:
    return store.parts(file_id, after=after, limit=_PARTS_AT_ONCE)
