"""FakeModel: a runner whose next token depends on every slot it reads, so a wrong block shows as a wrong token.

A slot holds an entry: a number that stands for its tenant and all tokens up to its own. The next token is a hash of the
request's seed and of all entries of its context, read through its block table. Blocks move by the batch's moves.
`Oracle` computes equal tokens from the tokens alone, without blocks.
"""

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from splitfuse.engine.core.batch import NO_OUTPUT, Batch, BatchRow, Moves, RowFailure, RowOutput
from splitfuse.engine.core.request import Request

VOCAB_SIZE = 1024
UNWRITTEN = -1
WAS_BAD = "something that it reads is bad"
BAD = -2  # a bad entry, like a NaN: everything computed from it is bad, too

Blocks = list[list[int]]


def root(tenant: str) -> int:
    """Return the value before the first entry. Tenants' entries never agree, so reading another's shows."""
    return zlib.crc32(tenant.encode())


def entry(previous: int, token_id: int) -> int:
    """Return the entry of a token, which depends on its position and on the entry before it, so on all before it."""
    return BAD if previous == BAD else hash((previous, token_id))


def next_token_id(seed: int, entries: tuple[int, ...]) -> int:
    """Return the token after this context."""
    return hash((seed, entries)) % VOCAB_SIZE


class Oracle:
    """Oracle of the output that a request must have, token by token, whatever is scheduled, moved or shared."""

    def __init__(self, request: Request) -> None:
        self._seed = request.seed
        self.entries: list[int] = []  # entries of the tokens so far
        self._last = root(request.tenant)
        for token_id in request.token_ids:
            self._push(token_id)

    def _push(self, token_id: int) -> None:
        self._last = entry(self._last, token_id)
        self.entries.append(self._last)

    def next_token(self) -> int:
        """Return the next token, and append it to the context."""
        token_id = next_token_id(self._seed, tuple(self.entries))
        self._push(token_id)
        return token_id


class Seer:
    """Drafter that mostly sees the oracle's tokens, and sometimes fails or drafts nonsense."""

    confidence = None

    def __init__(self, seed: float) -> None:
        self._rng = random.Random(seed)
        self._failures = random.Random(-seed)  # a source of its own, so that failures change no draft

    def draft(self, wanted: Mapping[Request, int]) -> dict[Request, list[int]]:
        """See Drafter."""
        if self._rng.random() < 0.02:
            raise StepFailure
        return {request: self._see(request, count) for request, count in wanted.items()}

    def _see(self, request: Request, count: int) -> list[int]:
        rng, oracle = self._rng, Oracle(request)
        count = rng.choice([count, count, rng.randint(0, count), count + 3])
        return [
            token if rng.random() < 0.8 else rng.choice([rng.randrange(VOCAB_SIZE), rng.randrange(16), -1, 10**9])
            for token in (oracle.next_token() for _ in range(count))
        ]

    def num_unread_tokens(self, request: Request) -> int:
        """See Drafter."""
        self._fail_now_and_then()
        return 0

    def forget(self, request: Request) -> None:
        """See Drafter."""
        self._fail_now_and_then()

    def _fail_now_and_then(self) -> None:
        if self._failures.random() < 0.02:
            raise StepFailure


@dataclass
class Faults:
    """Faults of one step."""

    culprits: set[Request] = field(default_factory=set)  # requests whose batches raise
    not_finite: set[Request] = field(default_factory=set)  # requests without a usable result
    raises: int = 0  # number of passes that raise, whatever their rows


class StepFailure(Exception):
    """Error that a model raises."""


class FakeModel:
    """Memory of keys and values, and the tokens computed from it."""

    def __init__(self, *, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self.device: Blocks = [[UNWRITTEN] * block_size for _ in range(num_blocks)]
        self.host: Blocks = [[UNWRITTEN] * block_size for _ in range(num_host_blocks)]
        self.faults = Faults()
        self.failed: set[Request] = set()  # requests that may end with "error"
        self._last_failed: list[BatchRow] = []

    def move(self, moves: Moves) -> None:
        """Copy blocks, like KVCache.make."""
        _copy(moves.swap_out, self.device, self.host)
        _copy(moves.swap_in, self.host, self.device)
        _copy(moves.copies, self.device, self.device)

    def run(self, batch: Batch) -> list[RowOutput]:
        """Run a batch: all rows write before any row reads, as in a layer of a model."""
        for row in batch.rows:
            self._write(row)
        faults = self.faults
        if faults.raises > 0 or (faults.culprits and any(row.request in faults.culprits for row in batch.rows)):
            self._break_off(batch.rows)
            raise StepFailure
        return [self._output(row) for row in batch.rows]

    def corrupt(self, block: int, offset: int) -> None:
        """Spoil the contents of a slot until the next write to it."""
        self.device[block][offset] = BAD

    def _break_off(self, rows: Sequence[BatchRow]) -> None:
        """Spoil the slots that a failed pass was writing."""
        self.faults.raises -= 1
        if len(rows) == 1 and rows == self._last_failed:  # the second failure of a row that ran alone
            self.failed.add(rows[0].request)
        self._last_failed = list(rows)
        for row in rows:
            for position in range(row.start, row.end):
                self.corrupt(row.request.block_table[position // self._block_size], position % self._block_size)

    def _write(self, row: BatchRow) -> None:
        size, device = self._block_size, self.device
        tokens, table = row.token_ids, row.request.block_table
        last = device[table[(row.start - 1) // size]][(row.start - 1) % size] if row.start else root(row.request.tenant)
        for position in range(row.start, row.end):
            last = entry(last, tokens[position - row.start])
            device[table[position // size]][position % size] = last

    def _output(self, row: BatchRow) -> RowOutput:
        request = row.request
        if not row.needs_sampling:
            return NO_OUTPUT
        context = tuple(islice(chain.from_iterable(map(self.device.__getitem__, request.block_table)), row.end))
        num_known = row.end - row.num_drafts
        if BAD in context[:num_known] or request in self.faults.not_finite:
            self.failed.add(request)
            return RowOutput(failure=RowFailure(WAS_BAD if BAD in context[:num_known] else "not finite"))
        token_ids = [next_token_id(request.seed, context[:num_known])]
        for index, draft in enumerate(row.draft_token_ids):
            seen = context[: num_known + index + 1]
            if token_ids[-1] != draft or BAD in seen:
                break
            token_ids.append(next_token_id(request.seed, seen))
        return RowOutput(tuple(token_ids), num_drafts=row.num_drafts)


def _copy(pairs: Sequence[tuple[int, int]], source: Blocks, target: Blocks) -> None:
    """Copy all blocks at once, in no order: no block may be written twice, or read after its write."""
    targets = {to for _, to in pairs}
    assert len(targets) == len(pairs), "two blocks are copied to one block"
    assert source is not target or targets.isdisjoint(start for start, _ in pairs), "a copy of a copy"
    for start, to in pairs:
        target[to] = list(source[start])
