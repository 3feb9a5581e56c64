"""RequestStates: slots for the states of a model's recurrent layers, beside the blocks of its attention layers.

    token_ids:  [0, position) in the state | [position, num_computed) in the slot's tail | not yet computed

A state is never changed in place: a row reads the slot of the row before it and writes another. So a row can run again,
and a kept slot is a checkpoint, to which any later request with the same beginning returns without a copy. The cached
blocks of a prompt are of use up to the last one with a checkpoint.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ...core.batch import BatchRow, Moves
from ...core.block_manager import BlockManager
from ...core.block_ports import BlockCompanion, Prefix
from ...core.prefix_cache import Entry
from ...core.request import Request, Status
from ...execution.models.state_slots import StatePlaces, StateSpec
from .checkpoint_positions import CheckpointPositions, Position
from .checkpoints import Checkpoint, worth_to_branches
from .state_slots import StateSlots


@dataclass(frozen=True, slots=True)
class StatePrefix(Prefix):
    """Prefix with the state after it: a checkpoint, or the staged contents of a state.

    `num_in_chain`: tokens in cached blocks, with a state behind them or without.
    """

    checkpoint: Checkpoint | None = None
    state: Any = None
    num_in_chain: int = 0


@dataclass(frozen=True, slots=True)
class Fork:
    """Key of the state before the last token of a prompt, for further outputs of it."""

    parent: Request


@dataclass(eq=False, slots=True)
class _State:
    """State of a request, after its last row in flight."""

    slot: int  # -1: none, before the first token or while it is on the host
    position: int  # tokens in the state
    num_tail: int = 0  # drafts in the slot's tail; some of the first may have been accepted
    host_slot: int = -1  # -1: not swapped out
    num_in_chain: int = 0
    last_kept: int = 0  # position of its last inner checkpoint
    found: Checkpoint | None = None  # checkpoint that the request began with, until its output has one
    trail: Checkpoint | None = None  # dropped when the output has a later one
    elsewhere: list[Checkpoint] = field(default_factory=list)  # checkpoints behind equal blocks of other requests


class _Pending(NamedTuple):
    """Checkpoint that a row in flight fills."""

    position: Position
    slot: int
    block: int | None  # request's block that ends there
    state: _State


class _RowInFlight(NamedTuple):
    source: int
    pending: list[_Pending]


@runtime_checkable
class StateTier(Protocol):
    """Companion that keeps states elsewhere, each with the block that it follows."""

    @property
    def has_staged(self) -> bool:
        """True if there are contents at hand."""

    def staged_state(self, block_hash: bytes) -> Any:
        """Return the contents at hand of the state behind a block, or None."""

    def load_state(self, slot: int, contents: Any, block_hash: bytes) -> None:
        """Fill a slot before the next step computes."""

    def keep_state(self, entry: Entry, slot: int, *, tenant: str, gain: int, is_kept: Callable[[], bool]) -> None:
        """Keep the state of a slot, as long as `is_kept` is true."""


class RequestStates(BlockCompanion):
    """BlockCompanion that hands out state slots, and keeps states as checkpoints."""

    def __init__(self, spec: StateSpec, tenant_weights: Mapping[str, float] | None, blocks: BlockManager) -> None:
        self.slots = StateSlots(spec, tenant_weights)
        self.max_drafts = spec.max_drafts
        self.num_blocks = spec.slot_blocks
        self._blocks = blocks
        self._tier = next((other for other in blocks.companions if isinstance(other, StateTier)), None)
        self._swaps = Moves([], [], [])
        block_size = blocks.device.block_size
        self._positions = CheckpointPositions(block_size, spec.grid, spec.num_checkpoints)
        self._states: dict[Request, _State] = {}
        self._in_flight: dict[int, _RowInFlight] = {}  # by the row's target

    # A waiting request.

    def find_prefix(self, request: Request, prefix: Prefix) -> StatePrefix:
        parent = None if request.num_output_tokens else request.parent
        if parent is not None and parent.status is Status.RUNNING:
            if (fork := self.slots.checkpoints.get(Fork(parent))) is not None:
                prefix = self._blocks.forked(parent)
                return StatePrefix(prefix.num_tokens, prefix.blocks, prefix.copied, checkpoint=fork)
            prefix = self._blocks.cached(request)
        num_cached, size = len(prefix.blocks), self._blocks.device.block_size
        for end in range(num_cached + len(prefix.staged), 0, -1):
            checkpoint = self.slots.checkpoints.get(prefix.blocks[end - 1]) if end <= num_cached else None
            state = self._staged(request, end) if checkpoint is None else None
            if checkpoint is not None or state is not None:
                blocks, staged = prefix.blocks[:end], prefix.staged[: max(0, end - num_cached)]
                num_in_chain = max(num_cached, end) * size
                return StatePrefix(end * size, blocks, None, staged, checkpoint, state, num_in_chain)
        return StatePrefix(num_in_chain=num_cached * size)

    def _staged(self, request: Request, num_blocks: int) -> Any:
        if self._tier is None or not self._tier.has_staged:
            return None
        return self._tier.staged_state(request.block_hashes[num_blocks - 1])

    def can_go_on(self, block: int) -> bool:
        return block in self.slots.checkpoints

    def admit(self, request: Request, prefix: Prefix, *, is_swapped: bool) -> None:
        assert isinstance(prefix, StatePrefix)
        if is_swapped:
            return  # its state gets a slot in `restore`: now that could be the slot of a prefix which is not shared yet
        self._drop_state(request)
        slot = -1
        if prefix.checkpoint is not None:
            slot = prefix.checkpoint.slot
            self.slots.share(slot)
            self.slots.checkpoints.use(prefix.checkpoint.key)
        self._states[request] = _State(
            slot,
            prefix.num_tokens,
            num_in_chain=prefix.num_in_chain,
            last_kept=prefix.num_tokens,
            found=prefix.checkpoint,
        )

    def release(self, request: Request) -> None:
        self._drop_state(request)
        self.slots.forget(Fork(request))

    def _drop_state(self, request: Request) -> None:
        state = self._states.pop(request, None)
        if state is not None and state.slot >= 0:
            self.slots.free(state.slot)
        if state is not None:
            self._free_host_slot(state)

    # Swapping.

    def can_swap_out(self, num_swapped: int) -> bool:
        return self.slots.host is not None and self.slots.host.num_free_blocks > num_swapped

    def swap_out(self, request: Request) -> None:
        assert self.slots.host is not None
        state = self._states[request]
        (state.host_slot,) = self.slots.host.allocate(1)
        self._swaps.swap_out.append((state.slot, state.host_slot))
        self.slots.free(state.slot)
        state.slot = -1

    def restore(self, request: Request, prefix: Prefix) -> None:
        assert isinstance(prefix, StatePrefix)
        state = self._states[request]
        if state.host_slot >= 0:
            state.slot = self.slots.allocate()
            self._swaps.swap_in.append((state.host_slot, state.slot))
            self._free_host_slot(state)
        elif prefix.state is not None:
            assert self._tier is not None
            state.slot = self.slots.allocate()
            num_blocks = prefix.num_tokens // self._blocks.device.block_size
            self._tier.load_state(state.slot, prefix.state, request.block_hashes[num_blocks - 1])
            block = self._cached_block(request, request.block_table[num_blocks - 1], prefix.num_tokens)
            if block is not None and self._kept(block, state.slot, request, prefix.num_tokens) is not None:
                self.slots.share(state.slot)

    def take_moves(self, moves: Moves) -> Moves:
        swaps, self._swaps = self._swaps, Moves([], [], [])
        return moves._replace(beside=swaps) if any(swaps) else moves

    def _free_host_slot(self, state: _State) -> None:
        if state.host_slot >= 0:
            assert self.slots.host is not None
            self.slots.host.free([state.host_slot])
            state.host_slot = -1

    # A row of a step.

    def place(self, rows: Sequence[BatchRow]) -> list[BatchRow]:
        """Return the rows of a step with their slots. Checkpoints get the slots that states leave."""
        targets = [self.slots.allocate() for _ in rows]
        return [row._replace(beside=self._places(row, target)) for row, target in zip(rows, targets, strict=True)]

    def _places(self, row: BatchRow, target: int) -> StatePlaces:
        request, state = row.request, self._states[row.request]
        num_replayed, num_certain = row.start - state.position, row.end - row.num_drafts
        assert 0 <= num_replayed <= state.num_tail, "the state is not the one before the row"
        slots = {state.position: state.slot, num_certain: target}
        filled: list[tuple[int, int]] = []
        pending: list[_Pending] = []
        for position in self._wanted(request, state, num_certain):
            slot = slots.get(position.num_tokens)
            if slot is not None:
                self.slots.share(slot)
            elif (slot := self.slots.allocate_checkpoint()) is not None:
                slots[position.num_tokens] = slot
                filled.append((position.num_tokens - state.position, slot))
            else:
                break
            index = position.num_tokens // self._blocks.device.block_size - 1
            block = request.block_table[index] if position.is_edge else None
            pending.append(_Pending(position, slot, block, state))
        self._in_flight[target] = _RowInFlight(state.slot, pending)
        places = StatePlaces(state.slot, target, num_replayed, tuple(filled))
        state.slot, state.position, state.num_tail = target, num_certain, row.num_drafts
        return places

    def _wanted(self, request: Request, state: _State, end: int) -> list[Position]:
        positions = self._positions.wanted(request, begin=state.position, end=end, num_in_chain=state.num_in_chain)
        has_cache = self._blocks.cache is not None
        return positions if has_cache else [position for position in positions if not position.is_edge]

    def end_rows(self, rows: Sequence[BatchRow], are_good: Sequence[bool]) -> None:
        """Free the slots that rows have read, and keep their checkpoints if they are good."""
        for row, is_good in zip(rows, are_good, strict=True):
            self._end_row(row, is_good=is_good)

    def _end_row(self, row: BatchRow, *, is_good: bool) -> None:
        assert row.beside is not None
        source, pending = self._in_flight.pop(row.beside.target)
        self.slots.end_pending(len(row.beside.checkpoints))
        for checkpoint in pending:
            if not (is_good and self._keep(row.request, checkpoint)):
                self.slots.free(checkpoint.slot)
        if source >= 0:
            self.slots.free(source)

    def _keep(self, request: Request, pending: _Pending) -> bool:
        """Keep a checkpoint, which takes over the reference; False if it would not be found, or is there already."""
        (num_tokens, is_edge, is_trail, is_inner), slot, own_block, state = pending
        if not is_edge:
            gain = request.num_prompt_tokens
            return not request.is_finished and self._kept(Fork(request), slot, request, gain) is not None
        block = self._cached_block(request, own_block, num_tokens)
        # Where a turn ended the next one begins: without that checkpoint all of it may have to be computed again.
        gain = worth_to_branches(num_tokens - state.last_kept) if is_inner and not is_trail else num_tokens
        kept = None if block is None else self._kept(block, slot, request, gain)
        if kept is None:
            return False
        if self._tier is not None and block is not None and (entry := self._entry(block)) is not None:
            is_kept = partial(self._is_kept, kept)
            self._tier.keep_state(entry, slot, tenant=kept.tenant, gain=kept.gain, is_kept=is_kept)
        if block != own_block:
            state.elsewhere.append(kept)
        if is_trail:
            if state.trail is not None and not state.trail.num_hits:
                self._forget(state.trail)
            state.trail, kept.is_end = kept, True
            if state.found is not None:
                self.slots.checkpoints.supersede(state.found)
                state.found = None
        elif is_inner:
            state.last_kept = num_tokens
        return True

    def _kept(self, key: Hashable, slot: int, request: Request, gain: int) -> Checkpoint | None:
        return self.slots.keep(Checkpoint(key, slot, request.tenant, gain))

    def _cached_block(self, request: Request, own_block: int | None, num_tokens: int) -> int | None:
        """Return the cached block that ends behind these tokens: the request's own, or an equal one."""
        cache = self._blocks.cache
        assert cache is not None
        if own_block is not None and own_block in cache:
            return own_block
        hashes, limit = request.block_hashes, num_tokens // self._blocks.device.block_size
        salt = request.params.cache_salt
        blocks = cache.find(hashes, request.token_ids, tenant=request.tenant, salt=salt, limit=limit)
        return blocks[-1] if len(blocks) == limit else None

    def forget(self, request: Request) -> None:
        """Forget the request's checkpoints behind equal blocks; those behind its own went with the blocks."""
        for checkpoint in self._states[request].elsewhere if request in self._states else ():
            self._forget(checkpoint)

    def forget_block(self, block: int) -> None:
        self.slots.forget(block)

    def _forget(self, checkpoint: Checkpoint) -> None:
        if self._is_kept(checkpoint):
            self.slots.forget(checkpoint.key)

    def _is_kept(self, checkpoint: Checkpoint) -> bool:
        return self.slots.checkpoints.get(checkpoint.key) is checkpoint

    def _entry(self, block: int) -> Entry | None:
        return None if self._blocks.cache is None else self._blocks.cache.entry(block)

    def check(self, running: Sequence[Request], waiting: Sequence[Request]) -> None:
        """Prove the invariants of slots and checkpoints."""
        held = [state.slot for state in self._states.values() if state.slot >= 0]
        for row in self._in_flight.values():
            held += [row.source] if row.source >= 0 else []
            held += [checkpoint.slot for checkpoint in row.pending]
        self.slots.check(held, [state.host_slot for state in self._states.values() if state.host_slot >= 0])
        swapped = {request for request in waiting if request.num_computed_tokens}
        assert self._states.keys() == {*running, *swapped}, "a state without a request, or a request without its state"
        for request, state in self._states.items():
            assert 0 <= request.num_computed_tokens - state.position <= state.num_tail, "the state is another one"
            assert (state.host_slot >= 0) == (request in swapped), "a state is on the host while its request runs"
            assert state.slot < 0 or request not in swapped, "a swapped request holds a slot of the device"
        for checkpoint in self.slots.checkpoints:
            match checkpoint.key:
                case Fork(parent):
                    assert parent in self._states
                case int(block):
                    assert self._entry(block) is not None, "a checkpoint that is never found"


def companion(
    spec: StateSpec, tenant_weights: Mapping[str, float] | None = None
) -> Callable[[BlockManager], RequestStates]:
    """Return the maker of a block manager's companion."""
    return partial(RequestStates, spec, tenant_weights)
