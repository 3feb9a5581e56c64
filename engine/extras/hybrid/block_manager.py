"""HybridBlockManager: blocks of a model's attention layers, and beside them slots for the states of its other layers.

    token_ids:  [0, position) in the state | [position, num_computed) in the slot's tail | not yet computed

A state is never changed in place: a row reads the slot of the row before it and writes another. So a row can run again,
and a kept slot is a checkpoint, to which any later request with the same beginning returns without a copy. The cached
blocks of a prompt are of use up to the last one with a checkpoint.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...core.batch import BatchRow
from ...core.block_allocator import BlockAllocator
from ...core.block_manager import BlockManager, CacheSpec, Prefix
from ...core.cache_shares import CacheShares
from ...core.prefix_cache import PrefixCache
from ...core.request import Request, Status
from ...core.state_places import StatePlaces, StateSpec
from .checkpoint_positions import CheckpointPositions, Position
from .checkpoints import Checkpoint, worth_to_branches
from .state_slots import StateSlots


@dataclass(frozen=True, slots=True)
class StatePrefix(Prefix):
    """Prefix with the state after it. `num_in_chain`: tokens in cached blocks, with a state behind them or without."""

    checkpoint: Checkpoint | None = None
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


class _Cache(PrefixCache):
    """PrefixCache that drops a block's checkpoint with the block."""

    def __init__(self, block_size: int, shares: CacheShares, slots: StateSlots) -> None:
        super().__init__(block_size, shares)
        self._slots = slots

    def forget(self, block: int) -> None:
        super().forget(block)
        self._slots.forget(block)


class HybridBlockManager(BlockManager):
    """BlockManager that hands out state slots, too, and keeps states as checkpoints."""

    def __init__(
        self,
        spec: CacheSpec,
        states: StateSpec,
        *,
        prefix_caching: bool,
        tenant_weights: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(spec, prefix_caching=prefix_caching, tenant_weights=tenant_weights)
        self.slots = StateSlots(states, tenant_weights)
        if self.cache is not None:
            self.cache = _Cache(spec.block_size, self.cache.shares, self.slots)
            self.device = BlockAllocator(spec.num_blocks, spec.block_size, self.cache)
        self._positions = CheckpointPositions(spec.block_size, states.grid, states.num_checkpoints)
        self._states: dict[Request, _State] = {}
        self._in_flight: dict[int, _RowInFlight] = {}  # by the row's target

    # A waiting request.

    def find_prefix(self, request: Request) -> StatePrefix:
        parent = None if request.num_output_tokens else request.parent
        fork = self.slots.checkpoints.get(Fork(parent)) if parent and parent.status is Status.RUNNING else None
        if parent is not None and fork is not None:
            prefix = self._forked(parent)
            return StatePrefix(prefix.num_tokens, prefix.blocks, prefix.copied, fork)
        prefix, size = self._cached(request), self.device.block_size
        for num_blocks in range(len(prefix.blocks), 0, -1):
            checkpoint = self.slots.checkpoints.get(prefix.blocks[num_blocks - 1])
            if checkpoint is not None:
                return StatePrefix(num_blocks * size, prefix.blocks[:num_blocks], None, checkpoint, prefix.num_tokens)
        return StatePrefix(num_in_chain=prefix.num_tokens)

    def admit(self, request: Request, prefix: Prefix) -> None:
        assert isinstance(prefix, StatePrefix)
        is_swapped_in = request.num_computed_tokens > prefix.num_tokens
        super().admit(request, prefix)
        if is_swapped_in:
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
        super().release(request)
        self._drop_state(request)
        self.slots.forget(Fork(request))

    def _drop_state(self, request: Request) -> None:
        state = self._states.pop(request, None)
        if state is not None and state.slot >= 0:
            self.slots.free(state.slot)
        if state is not None:
            self._free_host_slot(state)

    # Swapping.

    def can_swap_out(self, request: Request, swapped: Sequence[Request]) -> bool:
        host = self.slots.host
        has_slot = host is not None and host.num_free_blocks > len(swapped)
        return has_slot and super().can_swap_out(request, swapped)

    def swap_out(self, request: Request) -> None:
        """Move the computed tokens of a request to the host, and its state."""
        super().swap_out(request)
        assert self.slots.host is not None
        state = self._states[request]
        (state.host_slot,) = self.slots.host.allocate(1)
        self._moves.state_swap_out.append((state.slot, state.host_slot))
        self.slots.free(state.slot)
        state.slot = -1

    def restore(self, request: Request, prefix: Prefix) -> None:
        super().restore(request, prefix)
        state = self._states[request]
        if state.host_slot >= 0:
            state.slot = self.slots.allocate()
            self._moves.state_swap_in.append((state.host_slot, state.slot))
            self._free_host_slot(state)

    def _free_host_slot(self, state: _State) -> None:
        if state.host_slot >= 0:
            assert self.slots.host is not None
            self.slots.host.free([state.host_slot])
            state.host_slot = -1

    # A row of a step.

    def place(self, rows: Sequence[BatchRow]) -> list[BatchRow]:
        """Return the rows of a step with their slots. Checkpoints get the slots that states leave."""
        targets = [self.slots.allocate() for _ in rows]
        return [row._replace(states=self._places(row, target)) for row, target in zip(rows, targets, strict=True)]

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
            block = request.block_table[position.num_tokens // self.device.block_size - 1] if position.is_edge else None
            pending.append(_Pending(position, slot, block, state))
        self._in_flight[target] = _RowInFlight(state.slot, pending)
        places = StatePlaces(state.slot, target, num_replayed, tuple(filled))
        state.slot, state.position, state.num_tail = target, num_certain, row.num_drafts
        return places

    def _wanted(self, request: Request, state: _State, end: int) -> list[Position]:
        positions = self._positions.wanted(request, begin=state.position, end=end, num_in_chain=state.num_in_chain)
        return positions if self.cache is not None else [position for position in positions if not position.is_edge]

    def end_row(self, row: BatchRow, *, is_good: bool) -> None:
        """Free the slot that a row has read, and keep its checkpoints if they are good."""
        assert row.states is not None
        source, pending = self._in_flight.pop(row.states.target)
        self.slots.end_pending(len(row.states.checkpoints))
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
        assert self.cache is not None
        if own_block is not None and own_block in self.cache:
            return own_block
        hashes, limit = request.block_hashes, num_tokens // self.device.block_size
        salt = request.params.cache_salt
        blocks = self.cache.find(hashes, request.token_ids, tenant=request.tenant, salt=salt, limit=limit)
        return blocks[-1] if len(blocks) == limit else None

    def forget(self, request: Request) -> None:
        """Take the blocks of a request out of the prefix cache, and its checkpoints: their contents are wrong."""
        super().forget(request)
        for checkpoint in self._states[request].elsewhere if request in self._states else ():
            self._forget(checkpoint)

    def _forget(self, checkpoint: Checkpoint) -> None:
        if self.slots.checkpoints.get(checkpoint.key) is checkpoint:
            self.slots.forget(checkpoint.key)

    def check(self, running: Iterable[Request], waiting: Iterable[Request]) -> None:
        """Prove the invariants of blocks, slots and checkpoints."""
        running, waiting = list(running), list(waiting)
        super().check(running, waiting)
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
                    assert self.cache is not None
                    assert block in self.cache, "a checkpoint that is never found"
