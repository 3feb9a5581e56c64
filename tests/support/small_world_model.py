"""NullModel: a runner and launcher whose token is a function of request and position, if it reads the right contents.

A slot holds a number that stands for the weights, the tenant and all tokens up to its own. A row that reads any other
number, and what is computed from it, is wrong: its token is WRONG and its slots are BAD.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from small_world_settings import SmallSettings

from splitfuse.engine.core.batch import NO_OUTPUT, Batch, BatchRow, Moves, RowOutput
from splitfuse.engine.core.outputs import PromptLogprobs
from splitfuse.engine.core.ports import Speculator
from splitfuse.engine.core.request import Request

STOP, WRONG = 7, 8  # tokens: the end token, and one that no right model gives
State = tuple[int, tuple[int, ...]]  # contents after its last token, and the drafts behind that
NO_STATE: State = (-2, ())
BAD = -1  # contents of a slot that was never written, or by a pass that failed
MOST_OUTPUTS = 4  # of a prompt
NO_CHOICE: tuple[str, Request | None] = ("", None)
VERSION = 1_000_000  # between the contents of two versions of the weights
_BEHIND = 4  # tokens known behind the last one, for drafts


class StepFailure(Exception):
    """Error that a pass raises."""


class Outcomes:
    """Tokens and contents of each output of each prompt, by its number, which is the request's seed."""

    def __init__(self, settings: SmallSettings) -> None:
        numbers: dict[tuple[object, ...], int] = {}  # by tenant and tokens
        self.num_tokens: list[int] = []
        self.tokens: list[list[int]] = []
        self.contents: list[list[int]] = []
        self.tenants: list[str] = []
        for place, prompt in enumerate(settings.prompts.values()):
            for index in range(MOST_OUTPUTS):
                most = len(prompt.token_ids) + prompt.max_tokens
                tokens = [*prompt.token_ids, *(100 * (place + 1) + 20 * index + i for i in range(most + _BEHIND))]
                tokens = tokens[: most + _BEHIND]
                keys = [(prompt.tenant, *tokens[: end + 1]) for end in range(len(tokens))]
                self.num_tokens.append(most)
                self.tokens.append(tokens)
                self.contents.append([numbers.setdefault(key, len(numbers)) for key in keys])
                self.tenants.append(prompt.tenant)
        versions = range(1 + settings.events.get("weights", 0))
        # Contents that the weights of each version compute.
        self.of_version = [[[number + VERSION * v for number in row] for row in self.contents] for v in versions]


@dataclass(eq=False, slots=True)
class NullPending:
    """Step on the device. `are_right`: its rows have read what they should."""

    model: "NullModel"
    rows: list[BatchRow]
    are_right: list[bool]

    def wait(self) -> list[RowOutput]:
        return self.model.collect(self)


class NullModel:
    """Memory of a device and a host. `choice`: the outcome of the next pass, and the request that it concerns."""

    has_idle_work = False

    def __init__(self, settings: SmallSettings, outcomes: Outcomes) -> None:
        self._size = settings.block_size
        self.outcomes = outcomes
        self.device = [BAD] * (settings.num_blocks * self._size)
        self.host = [BAD] * (settings.num_host_blocks * self._size)
        self.choice = NO_CHOICE
        self.launched: list[NullPending] = []
        self.version = 0  # of the weights
        self.states: list[State] = []  # by slot
        self.host_states: list[State] = []

    def move(self, moves: Moves) -> None:
        for source, target in moves.beside.swap_out if moves.beside else ():
            self.host_states[target] = self.states[source]
        for source, target in moves.beside.swap_in if moves.beside else ():
            self.states[target] = self.host_states[source]
        _copy(moves.swap_out, self.device, self.host, self._size)
        _copy(moves.swap_in, self.host, self.device, self._size)
        _copy(moves.copies, self.device, self.device, self._size)

    def run(self, batch: Batch) -> list[RowOutput]:
        are_right = self._compute(batch.rows)
        self._fail_perhaps(batch.rows)
        return [self._output(row, is_right) for row, is_right in zip(batch.rows, are_right, strict=True)]

    def launch(self, batch: Batch) -> NullPending:
        if self.choice[0] == "nostart":
            raise StepFailure
        pending = NullPending(self, batch.rows, self._compute(batch.rows))
        self.launched.append(pending)
        return pending

    def collect(self, pending: NullPending) -> list[RowOutput]:
        launched, self.launched = self.launched, [other for other in self.launched if other is not pending]
        kind, chosen = self.choice
        try:
            self._fail_perhaps(pending.rows)
        except StepFailure:
            self.launched = []
            for step in launched:  # later ones computed with tokens that never came
                self._spoil(step.rows)
            raise
        if kind == "stop":  # the step behind computed with the end token
            self._spoil([row for step in self.launched for row in step.rows if row.request is chosen])
        return [self._output(row, is_right) for row, is_right in zip(pending.rows, pending.are_right, strict=True)]

    def stats(self) -> dict[str, int]:
        return {}

    def do_idle_work(self) -> None: ...

    def slots(self, table: Sequence[int], num_tokens: int, memory: Sequence[int] | None = None) -> list[int]:
        """Return the contents of the first tokens of a block table."""
        size, memory = self._size, self.device if memory is None else memory
        found: list[int] = []
        for block in table[: -(-num_tokens // size)]:
            found += memory[block * size : (block + 1) * size]
        return found[:num_tokens]

    def right(self, request: Request) -> list[int]:
        """Return the right contents of a request's tokens."""
        return self.outcomes.of_version[self.version][request.seed]

    def _compute(self, rows: Sequence[BatchRow]) -> list[bool]:
        """Write the slots of all rows, then read; return which rows have read the right contents."""
        for row in rows:
            self._write(row)
        are_right = [self.slots(row.request.block_table, n := row.end - row.num_drafts) == self.right(row.request)[:n]
                     for row in rows]  # fmt: skip
        if self.states:
            are_right = self._advance(rows, are_right)
        self._spoil([row for row, is_right in zip(rows, are_right, strict=True) if not is_right])
        return are_right

    def _advance(self, rows: Sequence[BatchRow], are_right: Sequence[bool]) -> list[bool]:
        """Write the states of all rows; return which rows are right and have read the right states."""
        found = [NO_STATE if row.beside.source < 0 else self.states[row.beside.source] for row in rows]
        advanced = []
        for row, (content, tail), is_right in zip(rows, found, are_right, strict=True):
            places, right, tokens = row.beside, self.right(row.request), self.outcomes.tokens[row.request.seed]
            start, num_certain = row.start - places.num_replayed, row.end - row.num_drafts
            expected = right[start - 1] if start else NO_STATE[0]
            replayed = list(tail[: places.num_replayed])
            is_good = is_right and content == expected and replayed == tokens[start : row.start]
            for count, slot in places.checkpoints:
                self.states[slot] = (right[start + count - 1] if is_good else BAD, ())
            drafts = tuple(row.token_ids[row.num_tokens - row.num_drafts :])
            self.states[places.target] = (right[num_certain - 1] if is_good else BAD, drafts)
            advanced.append(is_good)
        return advanced

    def _write(self, row: BatchRow) -> None:
        seed, size, table = row.request.seed, self._size, row.request.block_table
        tokens, right, contents = row.token_ids, self.outcomes.tokens[seed], self.right(row.request)
        tokens += right[row.start + len(tokens) : row.end]  # the token that the step before samples
        is_right = True
        for position, token_id in enumerate(tokens, row.start):
            is_right = is_right and token_id == right[position]
            slot = table[position // size] * size + position % size
            self.device[slot] = contents[position] if is_right else BAD

    def _spoil(self, rows: Sequence[BatchRow]) -> None:
        size = self._size
        for row in rows:
            for position in range(row.start, row.end):
                self.device[row.request.block_table[position // size] * size + position % size] = BAD
            for slot in (row.beside.target, *(slot for _, slot in row.beside.checkpoints)) if self.states else ():
                self.states[slot] = (BAD, ())

    def _fail_perhaps(self, rows: Sequence[BatchRow]) -> None:
        kind, chosen = self.choice
        if kind == "lost" or (kind == "fail" and any(row.request is chosen for row in rows)):
            self.choice = NO_CHOICE if kind == "lost" else self.choice
            self._spoil(rows)
            raise StepFailure

    def _output(self, row: BatchRow, is_right: bool) -> RowOutput:
        right, scores = self.outcomes.tokens[row.request.seed], None
        if positions := row.prompt_logprob_positions:
            scores = PromptLogprobs(0)
            scores.add([right[p] if is_right else WRONG for p in positions], [0.0] * len(positions), positions, [], [])
        if not row.needs_sampling:
            return NO_OUTPUT if scores is None else RowOutput(prompt_logprobs=scores)
        kind, chosen = self.choice
        num_known = row.end - row.num_drafts
        num_good = 0
        for draft, token_id in zip(row.draft_token_ids, right[num_known:], strict=False):
            if draft != token_id:
                break
            num_good += 1
        token_ids = right[num_known : num_known + num_good + 1] if is_right else [WRONG]
        if kind == "stop" and chosen is row.request:
            token_ids[0] = STOP
        return RowOutput(tuple(token_ids), num_drafts=row.num_drafts, prompt_logprobs=scores)


class NullSpeculator(Speculator):
    """Drafter of the right tokens for requests that the model's choice names, and of wrong ones for all others."""

    def __init__(self, model: NullModel, max_drafts: int) -> None:
        self._model, self._max_drafts = model, max_drafts
        self.is_on = False  # the next step is drafted

    def skips_step(self) -> bool:
        return not self.is_on

    def choose(self, running: Sequence[Request]) -> dict[Request, int]:
        return {request: self._max_drafts for request in running if request.num_uncomputed_tokens == 1}

    def draft(self, batch: Batch) -> Batch:
        kind, chosen = self._model.choice
        drafts = {}
        for row in batch.rows:
            start, request = row.start + 1, row.request
            tokens = self._model.outcomes.tokens[request.seed][start : start + row.num_drafts]
            num_good = {"": 0, "half": 1}.get(kind, 2**31) if chosen in (None, request) else 0
            drafts[request] = [token if i < num_good else WRONG for i, token in enumerate(tokens)]
        return batch.with_drafts(drafts)


def _copy(pairs: Sequence[tuple[int, int]], source: list[int], target: list[int], size: int) -> None:
    contents = [source[start * size : (start + 1) * size] for start, _ in pairs]
    for (_, to), slots in zip(pairs, contents, strict=True):
        target[to * size : (to + 1) * size] = slots
