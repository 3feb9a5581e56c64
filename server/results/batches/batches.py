"""Batches: the running batches, and the lookup of all others."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Collection
from contextvars import Context
from dataclasses import replace

from ....engine.errors import InvalidRequestError, QueueFullError, SplitfuseError
from ....engine.language.workers.shares import Turns, most_of
from ...api.listing import Page
from ...http.errors import IdempotencyKeyReusedError, NotReadyError, ResultNotFoundError
from ...jobs.idempotency import IdempotencyKey, KeyLocks
from ...jobs.job import new_id
from ..durable.batch_rows import BatchChanges, FileRow
from ..durable.memory_store import StoreUser
from ..durable.store import has_id_form
from . import BatchSettings
from .batch import ID_PREFIX, Batch, NewBatch
from .batch_run import Answer, BatchContext, BatchRun
from .files import PURPOSE, Files
from .group_writer import GroupWriter

MAX_UNFINISHED = 1000
_FULL_RETRY_S = 60.0
_LAST_LINES_S = 1.0  # for lines whose answers have come, until they are written


class Batches:
    """Batches of all owners, and their files."""

    def __init__(
        self,
        store: StoreUser,
        settings: BatchSettings,
        answer: Answer,
        *,
        clock: Callable[[], float],
        retry_s: float = 1.0,
    ) -> None:
        """`answer` runs a request of a batch. `clock` returns wall clock seconds."""
        self.files = Files(store, settings, clock=clock)
        self._store = store
        self._settings = settings
        self._clock = clock
        self._key_locks = KeyLocks()
        self._runs: dict[str, BatchRun] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._context = BatchContext(
            store=store,
            files=self.files,
            writer=GroupWriter(store, retry_s=retry_s),
            answer=answer,
            slots=Turns(settings.max_batch_requests, is_divided=settings.has_several_keys),
            clock=clock,
            file_ttl=settings.file_ttl,
            retry_s=retry_s,
        )

    async def resume(self) -> None:
        """Continue the batches that an earlier process left. Raises StoreUnavailableError."""
        for batch in Batch.from_rows(await self._store.use(lambda store: store.unfinished_batches())):
            self._start(batch)

    async def drain(self) -> None:
        """Begin no more lines; those that run end with the engine's requests."""
        self._context.ending.set()

    async def stop(self, *, has_crashed: bool = False) -> None:
        """Leave unfinished batches to the next process. `has_crashed`: the engine died."""
        if self._context.lines and self._context.ending.is_set():
            await asyncio.wait(self._context.lines, timeout=_LAST_LINES_S)
        await self._drop(set(self.tasks))
        self._context.writer.close()

    async def _drop(self, batch_ids: Collection[str]) -> None:
        """Stop running these batches."""
        tasks = [self.tasks[batch_id] for batch_id in batch_ids if batch_id in self.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def create(self, new: NewBatch, *, owner: str, key: IdempotencyKey | None) -> Batch:
        """Run a batch of the owner's file. Raises InvalidRequestError, QueueFullError, StoreUnavailableError."""
        async with self._key_locks.hold(owner, _lock_of(new.input_file_id)):
            file = await self._input(new.input_file_id, owner=owner)
            num_all = await self._store.use(lambda store: store.num_unfinished_batches())
            num_own = await self._store.use(lambda store: store.num_unfinished_batches(owner))
            is_divided = self._settings.has_several_keys
            if num_own >= most_of(MAX_UNFINISHED, num_own=num_own, num_all=num_all, is_divided=is_divided):
                raise QueueFullError(
                    f"{num_own} of your batches are unfinished; try later", retry_after_s=_FULL_RETRY_S
                )
            batch = new.begun(new_id(ID_PREFIX, self._settings.id_tag), owner, self._clock())
            expires = batch.deadline + self._settings.file_ttl
            row = batch.to_row(expires=expires)
            if key is not None:
                row = replace(row, idempotency_key=key.digest, body_digest=key.body_digest)
            file = replace(file, expires=max(file.expires, expires))
            await self._store.use(lambda store: store.write_batches(BatchChanges(files=(file,), batches=(row,))))
        self._start(batch)
        return batch

    @contextlib.asynccontextmanager
    async def idempotent(self, owner: str, key: IdempotencyKey | None) -> AsyncIterator[Batch | None]:
        """Hold the lock for an idempotency key. Yields the owner's batch already created with it, or None.

        Raises IdempotencyKeyReusedError, StoreUnavailableError.
        """
        if key is None:
            yield None
            return
        async with self._key_locks.hold(owner, key):
            row = await self._store.use(lambda store: store.find_batch_key(owner, key.digest))
            if row is not None and row.body_digest != key.body_digest:
                raise IdempotencyKeyReusedError
            yield None if row is None else Batch.from_row(row)

    async def find(self, batch_id: str, *, owner: str) -> Batch:
        """Find the owner's batch, with its counts. Raises ResultNotFoundError, which never gives the reason."""
        row = await self._store.use(lambda store: store.find_batch(batch_id)) if has_id_form(batch_id) else None
        if row is None or row.owner != owner or row.expires <= self._clock():
            raise ResultNotFoundError("batch")
        return await self._with_counts(Batch.from_row(row))

    async def list(self, owner: str, page: Page) -> list[Batch]:
        """Return a page of the owner's batches, with their counts."""
        rows = await self._store.use(lambda store: store.list_batches(owner, page, now=self._clock()))
        return [await self._with_counts(batch) for batch in Batch.from_rows(rows)]

    async def cancel(self, batch_id: str, *, owner: str) -> Batch:
        """Cancel the owner's batch, which ends soon. Raises ResultNotFoundError, InvalidRequestError if it is over."""
        batch = await self.find(batch_id, owner=owner)
        if batch.is_over:
            raise InvalidRequestError(f"the batch is {batch.status}; only one that is not over can be cancelled")
        if (run := self._runs.get(batch_id)) is None:
            raise await self._not_here(batch_id)
        await run.cancel()
        return await self.find(batch_id, owner=owner)

    async def _not_here(self, batch_id: str) -> SplitfuseError:
        """Return the error for an unfinished batch that does not run here."""
        return NotReadyError("the server is shutting down; the batch goes on in the next one", code="draining")

    async def delete_file(self, file_id: str, *, owner: str) -> None:
        """Delete the owner's file. Raises ResultNotFoundError, InvalidRequestError while a batch reads it."""
        async with self._key_locks.hold(owner, _lock_of(file_id)):
            file = await self.files.find(file_id, owner=owner)
            for batch in Batch.from_rows(await self._store.use(lambda store: store.unfinished_batches())):
                if batch.owner == owner and batch.input_file_id == file_id:
                    raise InvalidRequestError(f"{batch.batch_id} reads this file; cancel it, or wait for its end")
            await self.files.delete(file)

    def _start(self, batch: Batch) -> None:
        if batch.batch_id in self._runs:
            return
        run = self._runs[batch.batch_id] = BatchRun(batch, self._context)
        # Own context, because the run is not part of the request that created it.
        task = self.tasks[batch.batch_id] = asyncio.create_task(run.run(), context=Context())
        task.add_done_callback(lambda _: (self.tasks.pop(batch.batch_id), self._runs.pop(batch.batch_id)))

    async def _input(self, file_id: str, *, owner: str) -> FileRow:
        """Find the input file of a batch. Raises InvalidRequestError."""
        try:
            file = await self.files.find(file_id, owner=owner)
        except ResultNotFoundError as exc:
            raise InvalidRequestError(str(exc), param="input_file_id") from exc
        most = self._settings.max_batch_lines
        if file.purpose != PURPOSE:
            raise InvalidRequestError("that file was not uploaded with purpose batch", param="input_file_id")
        if file.num_lines > most:
            raise InvalidRequestError(
                f"the file has {file.num_lines} lines; split it, or raise --max-batch-lines above {most}",
                param="input_file_id",
            )
        return file

    async def _with_counts(self, batch: Batch) -> Batch:
        output, error = batch.output_file_id, batch.error_file_id
        if batch.is_over or output is None or error is None:
            return batch
        completed, failed = await self._store.use(lambda store: (store.num_parts(output), store.num_parts(error)))
        return replace(batch, completed=completed, failed=failed)


def _lock_of(file_id: str) -> IdempotencyKey:
    """Return the key of a file's lock: its holder knows that the file stays unchanged.

    No client's key has this digest.
    """
    return IdempotencyKey(hashlib.sha256(b"\0file " + file_id.encode()).digest(), b"")
