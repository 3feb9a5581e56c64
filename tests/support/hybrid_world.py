"""HybridWorld: a World whose model has recurrent layers, too: a wrong state shows as wrong tokens."""

import random
from collections.abc import Sequence
from typing import Any

from audit import Audit, NoAudit
from clients import Stream
from fake_model import BAD, FakeModel, entry, root
from overlapped_world import OverlappedAudit, OverlappedWorld
from world import World
from world_settings import WorldSettings

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.core.batch import NO_MOVES, Batch, BatchRow, Moves
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.execution.models.state_slots import StatePlaces, StateSpec, num_live_slots
from splitfuse.engine.extras.hybrid.request_states import companion


def hybrid_scheduler(config: EngineConfig, cache: CacheSpec, spec: StateSpec, **options: Any) -> Scheduler:
    """Make a scheduler over blocks and slots of these numbers; `options` are Scheduler's."""
    caching, weights = config.enable_prefix_caching, config.tenant_weights
    states = [companion(spec, weights)]
    blocks = BlockManager(cache, prefix_caching=caching, tenant_weights=weights, companions=states)
    return Scheduler(config, blocks, **options)


class States:
    """Memory of states: a slot holds the entry after its tokens, and the drafts behind them."""

    def __init__(self, num_slots: int, num_host: int) -> None:
        self.entries: list[int | None] = [None] * num_slots
        self._tails: list[list[int]] = [[] for _ in range(num_slots)]
        self._on_host: list[tuple[int | None, list[int]] | None] = [None] * num_host

    def move(self, moves: Moves) -> None:
        """Copy states out to the host and back."""
        beside = moves.beside or NO_MOVES
        for source, target in beside.swap_out:
            self._on_host[target] = self.entries[source], self._tails[source]
        for source, target in beside.swap_in:
            found = self._on_host[source]
            assert found is not None, "a state comes back from the host that was never there"
            self.entries[target], self._tails[target] = found

    def advance(self, row: BatchRow) -> int:
        """Advance a row's state over its tokens, and return the entry before the row's own tokens."""
        places = row.beside
        assert places is not None
        last, tail = root(row.request.tenant), list[int]()
        if places.source >= 0:
            found = self.entries[places.source]
            assert found is not None, "a state is read that was never written"
            last, tail = found, self._tails[places.source][: places.num_replayed]
        assert len(tail) == places.num_replayed, "more drafts are replayed than there were"
        num_certain = row.num_tokens - row.num_drafts
        entries, before = [last], last
        for index, token_id in enumerate(tail + row.token_ids[:num_certain]):
            before = entries[-1] if index == len(tail) else before
            entries.append(entry(entries[-1], token_id))
        for num_tokens, slot in places.checkpoints:
            self.entries[slot], self._tails[slot] = entries[num_tokens], []
        self.entries[places.target] = entries[-1]
        self._tails[places.target] = row.token_ids[num_certain:]
        return before

    def spoil(self, places: StatePlaces) -> None:
        """Spoil the slots that a failed pass was writing."""
        for slot in (places.target, *(slot for _, slot in places.checkpoints)):
            self.entries[slot] = BAD


class HybridModel(FakeModel):
    """FakeModel whose entries come from the states, so that a wrong state makes all that follows wrong."""

    def __init__(self, spec: StateSpec, **sizes: int) -> None:
        super().__init__(**sizes)
        self.states = States(spec.num_slots, spec.num_host)

    def move(self, moves: Moves) -> None:
        super().move(moves)
        self.states.move(moves)

    def _write(self, row: BatchRow) -> None:
        size, device, table = self._block_size, self.device, row.request.block_table
        last = self.states.advance(row)
        context = [device[table[position // size]][position % size] for position in range(row.start)]
        if BAD in context:  # the layers behind attention get its numbers
            assert row.beside is not None
            self.states.spoil(row.beside)
            last = BAD
        for position, token_id in enumerate(row.token_ids, row.start):
            last = entry(last, token_id)
            device[table[position // size]][position % size] = last

    def _break_off(self, rows: Sequence[BatchRow]) -> None:
        super()._break_off(rows)
        for row in rows:
            assert row.beside is not None
            self.states.spoil(row.beside)


class StateAudit(Audit):
    """Audit of states: what is found has one, and nothing of it is left when no request is."""

    def look_up(self, stream: Stream) -> None:
        """Check that the prefix found has a state, the one after its tokens. Checkpoints decide on its length."""
        prefix = self._core.blocks.find_prefix(stream.request)
        assert (prefix.num_tokens > 0) == (prefix.checkpoint is not None)
        if prefix.checkpoint is not None and not self._hash_is_weak:
            held = self._model.states.entries[prefix.checkpoint.slot]
            assert held in (stream.oracle.entries[prefix.num_tokens - 1], BAD), "the state is after other tokens"

    def __init__(self, core: Any, model: Any, settings: WorldSettings) -> None:
        super().__init__(core, model, settings)
        self._model, self._hash_is_weak = model, settings.hash_is_weak

    def when_empty(self) -> None:
        super().when_empty()
        states: Any = self._core.blocks.companions[-1]
        assert not states._states, "the states of requests that have ended are kept"
        assert not states._in_flight
        kept = {checkpoint.slot for checkpoint in states.slots.checkpoints}
        assert states.slots.num_used == len(kept), "slots leaked"
        assert states.slots.host is None or not states.slots.host.num_used_blocks, "slots of the host leaked"


class OverlappedStateAudit(StateAudit, OverlappedAudit):
    """Both."""


class HybridWorld(World):
    """World of a hybrid model."""

    test = "test_hybrid_worlds.py"
    max_steps_in_flight = 1
    audit: type[Audit] = StateAudit

    def _spec(self) -> StateSpec:
        rng, most = random.Random(self._seed), self.settings.config.max_num_seqs
        num_live = num_live_slots(most, self.max_steps_in_flight)
        max_drafts, num_checkpoints = rng.choice([2, 12, 12]), rng.choice([1, 2, 5, 20, 100])
        grid, num_host = rng.choice([1, 8, 16, 256]), rng.choice([1, 2, 2 * most])
        num_host = num_host if self.settings.num_host_blocks else 0
        return StateSpec(num_live, num_checkpoints, max_drafts, grid, num_host=num_host, slot_blocks=rng.choice([0, 3]))

    def _make_pipeline(self, recording: Any) -> Any:
        self._model = HybridModel(
            self._spec(),
            num_blocks=self.settings.num_blocks,
            num_host_blocks=self.settings.num_host_blocks,
            block_size=self.settings.config.block_size,
        )
        return super()._make_pipeline(recording)

    def _make_scheduler(self, cache: CacheSpec, **options: Any) -> Scheduler:
        return hybrid_scheduler(self.settings.config, cache, self._spec(), **options)

    def _make_audit(self, *, outputs_only: bool) -> Audit:
        return (NoAudit if outputs_only else self.audit)(self._core, self._model, self.settings)

    def _count(self, batch: Batch) -> None:
        super()._count(batch)
        self._seen["states swapped in"] += len((batch.moves.beside or NO_MOVES).swap_in)
        for row in batch.rows:
            if row.beside is not None:
                self._seen["checkpoints"] += len(row.beside.checkpoints)
                self._seen["replayed"] += row.beside.num_replayed


class OverlappedHybridWorld(HybridWorld, OverlappedWorld):
    """World of a hybrid model whose steps run ahead of their results."""

    max_steps_in_flight = 2
    audit = OverlappedStateAudit
