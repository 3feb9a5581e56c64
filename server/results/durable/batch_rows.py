"""Rows of uploaded files and of batches. Times are wall clock seconds.

A file's contents are its parts in the order of their numbers. An upload's parts are pieces of equal size; the parts of
a batch's output are its answers, numbered like the lines of the input. So an answer is one row, and an output file is
never written as a whole.
"""

from dataclasses import dataclass, field, replace

from .checksum import checksum, is_whole


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file. `state` is partial (an upload, or the output of a running batch), ready or deleted."""

    file_id: str
    owner: str
    created: float
    expires: float
    purpose: str
    filename: str
    num_bytes: int
    num_lines: int
    state: str = "ready"
    row_sum: int | None = field(default=None, compare=False)  # checksum; None where the row has none

    def summed(self) -> "FileRow":
        """Return the row with its checksum, to be written."""
        return replace(self, row_sum=checksum(*self._checked))

    @property
    def is_whole(self) -> bool:
        """False if the row was changed on disk. A deleted file has lost its name, and may have any row."""
        return self.state == "deleted" or is_whole(self.row_sum, *self._checked)

    @property
    def _checked(self) -> tuple[object, ...]:
        return self.file_id, self.owner, self.created, self.purpose, self.filename, self.num_bytes, self.num_lines


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch. `body` is its JSON; queries search by the other fields."""

    batch_id: str
    owner: str
    created: float
    expires: float
    body: str
    is_over: bool = False
    idempotency_key: bytes | None = None
    body_digest: bytes | None = None
    row_sum: int | None = field(default=None, compare=False)  # checksum; None where the row has none

    def summed(self) -> "BatchRow":
        """Return the row with its checksum, to be written."""
        return replace(self, row_sum=checksum(*self._checked))

    @property
    def is_whole(self) -> bool:
        """False if the row was changed on disk."""
        return is_whole(self.row_sum, *self._checked)

    @property
    def _checked(self) -> tuple[object, ...]:
        return self.batch_id, self.owner, self.created, self.body, self.is_over


@dataclass(frozen=True, slots=True)
class BatchChanges:
    """Changes that one transaction writes.

    A known id updates its row: a file's size, expiry and state, a batch's body, expiry and whether it is over.
    """

    files: tuple[FileRow, ...] = ()
    parts: tuple[tuple[str, int, bytes], ...] = ()  # file, number, contents; existing parts stay unchanged
    batches: tuple[BatchRow, ...] = ()
    begun: tuple[tuple[str, int], ...] = ()  # batch and line
    answered: tuple[tuple[str, int], ...] = ()  # batch and line, no longer begun
    outputs: tuple[tuple[str, str], ...] = ()  # file in `files`, and the batch that writes it


@dataclass(frozen=True, slots=True)
class LinesDone:
    """Progress of a batch: the answered lines, and the lines that were running when a process died."""

    completed: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    num_crashes: dict[int, int] = field(default_factory=dict)  # line → processes that died while it ran
