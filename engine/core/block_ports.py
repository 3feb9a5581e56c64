"""BlockCompanion: what an extension keeps beside the blocks of requests, or of their contents elsewhere; and Prefix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .batch import BatchRow, Moves
from .request import Request


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens of a waiting request that are in the cache already.

    `num_tokens` tokens lie in the shared `blocks`, in block `copied`, of which the request gets a copy, and in `staged`
    contents of further blocks.
    """

    num_tokens: int = 0
    blocks: tuple[int, ...] = ()
    copied: int | None = None
    staged: tuple[Any, ...] = ()


class BlockCompanion:
    """Memory beside the blocks: of states without which a request cannot go on, or of cached blocks on disk.

    Methods follow the BlockManager's of the same name and are called after it has changed. This base class has none.
    """

    max_drafts = 2**31  # most drafts of a row
    num_blocks = 0.0  # size of a request's memory, in blocks

    def find_prefix(self, request: Request, prefix: Prefix) -> Prefix:
        """Return the prefix that the request can have: a longer one, or a shorter one."""
        return prefix

    def can_go_on(self, block: int) -> bool:
        """True if a request can go on behind this cached block."""
        return True

    def admit(self, request: Request, prefix: Prefix, *, is_swapped: bool) -> None:
        """Follow an admission. `is_swapped`: the host has more of the request than the prefix."""

    def restore(self, request: Request, prefix: Prefix) -> None:
        """Fill what an admitted request needs."""

    def release(self, request: Request) -> None:
        """Free what a request has."""

    def can_swap_out(self, num_swapped: int) -> bool:
        """True if the host has room for one more request beside `num_swapped` others."""
        return True

    def swap_out(self, request: Request) -> None:
        """Move what a request has to the host."""

    def remember(self, request: Request, first: int, end: int) -> None:
        """Follow blocks [first, end) of a request's table into the prefix cache."""

    def forget(self, request: Request) -> None:
        """Drop what is known of a request's tokens: it is wrong."""

    def forget_block(self, block: int) -> None:
        """Drop what belongs to a cached block that gets other contents."""

    def place(self, rows: list[BatchRow]) -> list[BatchRow]:
        """Return the rows of a step with their places."""
        return rows

    def end_rows(self, rows: Sequence[BatchRow], are_good: Sequence[bool]) -> None:
        """Note that rows were computed. A row that is not good leaves nothing behind."""

    def take_moves(self, moves: Moves) -> Moves:
        """Return the step's moves, this memory's included."""
        return moves

    def check(self, running: Sequence[Request], waiting: Sequence[Request]) -> None:
        """Prove the invariants."""
