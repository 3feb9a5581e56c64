"""BatchRun: takes one batch from its first state to its last, whichever process began it.

Every line's answer is one row, written once. Lines that a process had not answered when it died are rerun by the next.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....engine.errors import EngineDeadError, InvalidRequestError, RequestFailedError, UnavailableError, new_error_id
from ....engine.language.workers.shares import Turns
from ...http.errors import describe
from ..durable.batch_rows import BatchChanges, FileRow, LinesDone
from ..durable.memory_store import StoreUser
from ..durable.unfinished_job import MAX_CRASHES
from .batch import Batch
from .files import OUTPUT_PURPOSE, Files
from .group_writer import GroupWriter
from .lines import Line, answer_line, is_unanswered, line_error, read_line, refusal_line, unanswered_line

_WRITTEN_AT_ONCE = 256  # unanswered lines per transaction
_MAX_ERRORS = 100  # most errors that a batch reports of its lines
Answer = Callable[[Batch, Mapping[str, Any]], Awaitable[Any]]  # runs a request of the batch in the background
_NOT_ANSWERED = {
    "expired": ("batch_expired", "the request was not answered within the completion window; send it in a new batch"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before the request was answered"),
}


@dataclass(frozen=True, kw_only=True)
class BatchContext:
    """Values that all batches share. `slots` has one slot for each line that may be in the engine at once."""

    store: StoreUser
    files: Files
    writer: GroupWriter
    answer: Answer
    slots: Turns
    clock: Callable[[], float]  # wall clock
    file_ttl: float
    retry_s: float  # wait before a retry, after failures that are not the batch's fault
    ending: asyncio.Event = field(default_factory=asyncio.Event)  # set: no line begins any more
    lines: set[asyncio.Task[None]] = field(default_factory=set)  # lines that run


class BatchRun:
    """One unfinished batch, and the only writer of `batch`."""

    def __init__(self, batch: Batch, context: BatchContext) -> None:
        self.batch = batch
        self._context = context
        self._cancelled = asyncio.Event()

    async def run(self) -> None:
        """Run the batch; returns when it is over."""
        files, key = self._context.files, (self.batch.owner, self.batch.batch_id)
        try:
            await self._run_to_end()
        finally:
            del files.outputs[key]  # what is complete counts as a file

    async def _run_to_end(self) -> None:
        while not self.batch.is_over:
            try:
                await self._run()
            except UnavailableError:  # the store cannot be read now
                await asyncio.sleep(self._context.retry_s)
            except Exception as exc:  # a bug; other batches continue
                error = {"code": "server_error", "line": None, "message": describe(exc).message, "param": None}
                await self._fail([error])

    async def cancel(self) -> None:
        """Stop answering lines; returns once this is written."""
        if self.batch.status in ("validating", "in_progress"):
            self._cancelled.set()
            await self._enter("cancelling")

    async def _run(self) -> None:
        if self.batch.status == "validating":
            await self._validate()
        if self.batch.status == "in_progress":
            await self._answer_until_deadline()
        if not self.batch.is_over:
            await self._finish()

    async def _enter(self, status: str, *, files: tuple[FileRow, ...] = (), **changed: Any) -> None:
        now = self._context.clock()
        self.batch = self.batch.entered(status, now, **changed)
        row = self.batch.to_row(expires=max(now, self.batch.deadline) + self._context.file_ttl)
        outputs = tuple((file.file_id, self.batch.batch_id) for file in files)
        await self._context.writer.write(BatchChanges(files=files, batches=(row,), outputs=outputs))

    async def _fail(self, errors: list[dict[str, Any]]) -> None:
        await self._enter("failed", errors=errors, output_file_id=None, error_file_id=None)

    # State validating.

    async def _validate(self) -> None:
        errors, custom_ids = list[dict[str, Any]](), set[str]()
        total = 0
        async for number, text in self._lines():
            total += 1
            try:
                custom_id = self._read(text).custom_id
                if custom_id in custom_ids:
                    raise InvalidRequestError(
                        "custom_id came before; give each line one of its own",
                        param="custom_id",
                        code="duplicate_custom_id",
                    )
                custom_ids.add(custom_id)
            except InvalidRequestError as exc:
                errors.append(line_error(exc, number))
            if len(errors) >= _MAX_ERRORS:
                break
        if not total:
            message = "the file has no lines; each is one request"
            errors.append({"code": "empty_file", "line": None, "message": message, "param": None})
        if self.batch.status != "validating":
            return  # cancelled meanwhile
        if errors:
            await self._fail(errors)
        else:
            await self._begin(total)

    async def _begin(self, total: int) -> None:
        output, error = self._new_file("output"), self._new_file("error")
        names = {"output_file_id": output.file_id, "error_file_id": error.file_id}
        await self._enter("in_progress", files=(output, error), total=total, **names)

    def _new_file(self, kind: str) -> FileRow:
        file = self._context.files.new(self.batch.owner, f"{self.batch.batch_id}_{kind}.jsonl", OUTPUT_PURPOSE)
        return dataclasses.replace(file, expires=self.batch.deadline + self._context.file_ttl)  # until it is complete

    async def _lines(self) -> AsyncIterator[tuple[int, bytes]]:
        async with contextlib.aclosing(self._context.files.lines(self.batch.input_file_id)) as lines:
            async for number, text in lines:
                if number % 64 == 0:
                    await asyncio.sleep(0)  # let other tasks run
                yield number, text

    def _read(self, text: bytes) -> Line:
        return read_line(text, endpoint=self.batch.endpoint)

    # State in progress.

    async def _answer_until_deadline(self) -> None:
        answering = asyncio.create_task(self._answer_lines())
        cancelled = asyncio.create_task(self._cancelled.wait())
        try:
            remaining = max(0.0, self.batch.deadline - self._context.clock())
            await asyncio.wait([answering, cancelled], timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            answering.cancel()
            cancelled.cancel()
            await asyncio.gather(answering, cancelled, return_exceptions=True)

    async def _answer_lines(self) -> None:
        await self._count_output()
        progress = await self.lines_done()
        finished = progress.completed | progress.failed
        suspects = {number for number, count in progress.num_crashes.items() if count >= MAX_CRASHES - 1} - finished
        if suspects:  # a suspect may be the line that crashes processes; running them one at a time shows which
            async for number, text in self._lines():
                if number in suspects:
                    await self._answer(number, text, num_crashes=progress.num_crashes[number])
        try:
            async with asyncio.TaskGroup() as group:
                async for number, text in self._lines():
                    if number not in finished and number not in suspects:
                        await self._context.slots.take(self.batch.owner)
                        if self._context.ending.is_set():
                            await asyncio.Event().wait()  # until the next process goes on
                        task = group.create_task(self._answer(number, text))
                        self._context.lines.add(task)
                        task.add_done_callback(self._leave_slot)
        except ExceptionGroup as exc:
            raise exc.exceptions[0] from exc

    def _leave_slot(self, task: asyncio.Task[None]) -> None:
        self._context.lines.discard(task)
        self._context.slots.leave(self.batch.owner)

    async def _answer(self, number: int, text: bytes, *, num_crashes: int = 0) -> None:
        line = self._read(text)
        await self._context.writer.write(BatchChanges(begun=((self.batch.batch_id, number),)))
        file_id, line_bytes = self.batch.output_file_id, b""
        try:
            line_bytes = await answer_line(line.custom_id, await self._body(line, num_crashes=num_crashes))
        except Exception as exc:
            file_id, line_bytes = self.batch.error_file_id, await refusal_line(line.custom_id, describe(exc))
        assert file_id is not None
        await self._write_answers([(file_id, number, line_bytes)])

    async def _body(self, line: Line, *, num_crashes: int) -> Any:
        """Return the body of the answer. Raises the error that the endpoint would have answered with."""
        if num_crashes >= MAX_CRASHES:
            raise RequestFailedError(
                f"interrupted: {num_crashes} processes died while it was running",
                error_id=new_error_id(),
                code="interrupted",
            )
        while True:
            try:
                await self._context.files.check_room(0, owner=self.batch.owner)
                return await self._context.answer(self.batch, line.body)
            except (UnavailableError, EngineDeadError):  # retry when the engine or the server stops
                await asyncio.sleep(self._context.retry_s)

    # End of the batch.

    async def lines_done(self) -> LinesDone:
        """Return the answered lines."""
        batch = self.batch
        output, error = batch.output_file_id, batch.error_file_id
        if output is None or error is None:
            return LinesDone()
        await self._context.writer.write(BatchChanges())  # writes of cancelled lines may still be queued
        return await self._context.store.use(lambda store: store.lines_done(batch.batch_id, output, error))

    async def _count_output(self) -> None:
        """Count the bytes that earlier processes have written."""
        names = [name for name in (self.batch.output_file_id, self.batch.error_file_id) if name is not None]
        num_bytes = await self._context.store.use(lambda store: sum(store.file_bytes(name) for name in names))
        self._context.files.outputs[self.batch.owner, self.batch.batch_id] = num_bytes

    async def _finish(self) -> None:
        progress = await self.lines_done()
        num_unanswered, status = 0, "cancelled" if self.batch.status == "cancelling" else "completed"
        if len(progress.completed) + len(progress.failed) < self.batch.total:
            status = "cancelled" if status == "cancelled" else "expired"
            await self._leave_unanswered(progress, *_NOT_ANSWERED[status])
            progress = await self.lines_done()
            num_unanswered = await self._num_unanswered()
        if status == "completed" and self.batch.status != "finalizing":
            await self._enter("finalizing")
        output = await self._final_file(self.batch.output_file_id, len(progress.completed))
        error = await self._final_file(self.batch.error_file_id, len(progress.failed))
        await self._enter(
            status,
            files=tuple(file for file in (output, error) if file is not None),
            completed=len(progress.completed),
            failed=len(progress.failed),
            unanswered=num_unanswered,
            output_file_id=self.batch.output_file_id if progress.completed else None,
            error_file_id=self.batch.error_file_id if progress.failed else None,
        )

    async def _leave_unanswered(self, progress: LinesDone, code: str, message: str) -> None:
        file_id = self.batch.error_file_id
        assert file_id is not None
        parts: list[tuple[str, int, bytes]] = []
        async for number, text in self._lines():
            if number not in progress.completed and number not in progress.failed:
                custom_id = self._read(text).custom_id
                parts.append((file_id, number, unanswered_line(custom_id, code=code, message=message)))
            if len(parts) >= _WRITTEN_AT_ONCE:
                await self._write_answers(parts)
                parts.clear()
        await self._write_answers(parts)

    async def _num_unanswered(self) -> int:
        """Count the lines that were left unanswered, by an earlier process too."""
        assert self.batch.error_file_id is not None
        async with contextlib.aclosing(self._context.files.lines(self.batch.error_file_id)) as lines:
            return sum([is_unanswered(line) async for _, line in lines])

    async def _write_answers(self, parts: Sequence[tuple[str, int, bytes]]) -> None:
        line_keys = tuple((self.batch.batch_id, number) for _, number, _ in parts)
        await self._context.writer.write(BatchChanges(parts=tuple(parts), answered=line_keys))
        num_bytes = sum(len(line) for *_, line in parts)
        self._context.files.outputs[self.batch.owner, self.batch.batch_id] += num_bytes

    async def _final_file(self, file_id: str | None, num_lines: int) -> FileRow | None:
        """Return the output file in its final state, deleted if it is empty."""
        if file_id is None:
            return None
        file, num_bytes = await self._context.store.use(
            lambda store: (store.find_file(file_id), store.file_bytes(file_id))
        )
        assert file is not None
        state, expires = "ready" if num_lines else "deleted", self._context.clock() + self.batch.files_expire_after
        return dataclasses.replace(file, num_bytes=num_bytes, num_lines=num_lines, state=state, expires=expires)
