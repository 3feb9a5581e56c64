"""What is stored of uploaded files and of batches. Times are wall clock seconds.

A file's contents are its parts, in the order of their numbers: of an uploaded one pieces of equal size, of a batch's
output the answers, numbered like the lines of the input. So an answer is one row, and an output file needs no writing.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file. `state` is partial (an upload, or the output of a batch that runs), ready or deleted."""

    file_id: str
    owner: str
    created: float
    expires: float
    purpose: str
    filename: str
    num_bytes: int
    num_lines: int
    state: str = "ready"


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch. `body` is its JSON; the other fields are those by which it is found."""

    batch_id: str
    owner: str
    created: float
    expires: float
    body: str
    is_over: bool = False
    idempotency_key: bytes | None = None
    body_digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class BatchChanges:
    """What one transaction writes. A row whose id is there changes what can change: a file's size, expiry and state, a
    batch's body, expiry and whether it is over.
    """

    files: tuple[FileRow, ...] = ()
    parts: tuple[tuple[str, int, bytes], ...] = ()  # file, number, contents; a part that is there stays as it is
    batches: tuple[BatchRow, ...] = ()
    begun: tuple[tuple[str, int], ...] = ()  # batch and line
    answered: tuple[tuple[str, int], ...] = ()  # no longer begun
    outputs: tuple[tuple[str, str], ...] = ()  # those of `files` that a batch writes, and the batch


@dataclass(frozen=True, slots=True)
class LinesDone:
    """How far a batch is: the lines that are answered, and those that were begun by processes that died."""

    completed: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    num_crashes: dict[int, int] = field(default_factory=dict)  # line → processes that died while it ran
