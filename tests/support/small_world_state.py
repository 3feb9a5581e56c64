"""Memory: copies of a small world's state, put back into the same objects; and the key of a state.

The key holds what matters: the blocks' numbers, absolute times and the names of equal prompts are left out of it.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from small_world import SmallWorld

from splitfuse.engine.core.batch import Moves
from splitfuse.engine.core.preemption_costs import MAX_PREEMPTIONS
from splitfuse.engine.core.request import Request, Status

# Attributes that change, values and containers of values; test_every_small_world.py proves that there are no others.
VALUES = {
    "": ("now", "work", "outputs", "num_unreported"),
    "model": ("choice", "version"),
    "blocks": ("num_prefix_queries", "num_prefix_hits"),
    "blocks.device": ("num_evictions",),
    "blocks.cache.shares": ("_total_weight",),
    "scheduler.costs": ("seconds_per_token",),
    "scheduler._counters": ("_last", "_level", "_num_steps"),
    "core._counter": ("_num_preemptions",),  # replaced, never changed
    "pipeline": ("is_paused", "_last_end"),
    "audit._places": ("_num_steps",),
    "states.slots": ("_num_pending",),
    "states.slots.checkpoints": ("_num_entries", "_level", "num_evictions"),
}
CONTAINERS = {
    "": ("requests", "num_received", "num_left", "events_left"),
    "model": ("device", "host", "launched", "states", "host_states"),
    "blocks.device": ("_free", "_references"),
    "blocks.host": ("_free", "_references"),
    "blocks.cache": ("_block_of", "_content"),
    "blocks.cache.shares": ("_holdings", "_holding_of", "_candidates", "_protected"),
    "scheduler": ("waiting", "running", "num_preemptions_by_mode", "_in_flight", "_finished_in_flight"),
    "scheduler._counters": ("_charged", "_ceilings"),
    "scheduler._deadlines": ("_heap",),
    "pipeline": ("_steps",),
    "texts": ("_prompt_logprobs",),
    "audit._places": ("_closed",),
    "states": ("_states", "_in_flight"),
    "states.slots": ("_num_kept",),
    "states.slots._pool": ("_free", "_references"),
    "states.slots.host": ("_free", "_references"),
    "states.slots.checkpoints": ("_of_key", "_counts", "_heap"),
}
REQUEST_VALUES = (
    "status", "finish_reason", "stop_reason", "num_computed_tokens", "num_output_placeholders", "num_read_tokens",
    "num_preemptions", "num_draft_tokens", "num_accepted_tokens", "num_cached_tokens", "first_scheduled_time",
    "first_token_time", "last_token_time", "finished_time",
)  # fmt: skip
_request_values = attrgetter(*REQUEST_VALUES)
Snapshot = tuple[Any, ...]


def part(world: SmallWorld, path: str) -> Any:
    """Return an object of the world, or None if this world has none."""
    found: Any = world
    for name in path.split(".") if path else ():
        found = getattr(found, name, None)
    return found


class Memory:
    """Copies of one world's state."""

    def __init__(self, world: SmallWorld) -> None:
        self._world = world
        self._values: list[tuple[Any, str]] = []
        self._containers: list[tuple[Any, str]] = []
        for table, kept in ((VALUES, self._values), (CONTAINERS, self._containers)):
            for path, names in table.items():
                owner = part(world, path)
                kept += [(owner, name) for name in names if owner is not None]
        self._shares = None if world.blocks.cache is None else world.blocks.cache.shares

    def save(self) -> Snapshot:
        """Return a copy of the state."""
        world = self._world
        return (
            [getattr(owner, name) for owner, name in self._values],
            [getattr(owner, name).copy() for owner, name in self._containers],
            [
                (r, _request_values(r), r.token_ids[:], r.block_table[:], r.host_block_table[:], r.block_hashes[:])
                for r in world.requests
            ],
            [(key, group.copy()) for key, group in world.core._requests.items()],
            [(step, step.to_run, step.state, step.pending) for step in world.steps],
            [(held, held.num_blocks, held.is_protected, held.free.copy()) for held in self._holdings()],
            [(owner, name, _copy(getattr(owner, name))) for owner in self._states() for name in owner.__slots__],
        )

    def _holdings(self) -> dict[Any, None]:
        """Return the tenants' holdings, and those that only heaps still hold."""
        shares = self._shares
        if shares is None:
            return {}
        entries = (*shares._candidates, *shares._protected)
        return dict.fromkeys([*shares._holdings.values(), *(entry[2] for entry in entries)])

    def _states(self) -> dict[Any, None]:
        """Return the states of a hybrid's requests, and all checkpoints that may still be looked at."""
        if (memory := self._world.states) is None:
            return {}
        pending = [item.state for row in memory._in_flight.values() for item in row.pending]
        states = dict.fromkeys([*memory._states.values(), *pending])
        entries = [entry[2] for entry in memory.slots.checkpoints._heap]
        named = [kept for state in states for kept in (state.found, state.trail, *state.elsewhere) if kept is not None]
        return states | dict.fromkeys([*memory.slots.checkpoints, *entries, *named])

    def restore(self, snapshot: Snapshot) -> None:
        """Put a state back. The snapshot stays good."""
        values, containers, requests, groups, steps, holdings, states = snapshot
        for (owner, name), value in zip(self._values, values, strict=True):
            setattr(owner, name, value)
        for (owner, name), value in zip(self._containers, containers, strict=True):
            setattr(owner, name, value.copy())
        for request, fields, token_ids, block_table, host_block_table, block_hashes in requests:
            for name, value in zip(REQUEST_VALUES, fields, strict=True):
                setattr(request, name, value)
            request.token_ids, request.block_table = token_ids[:], block_table[:]
            request.host_block_table, request.block_hashes = host_block_table[:], block_hashes[:]
        self._world.core._requests = {key: group.copy() for key, group in groups}
        for step, to_run, state, pending in steps:
            step.to_run, step.state, step.pending = to_run, state, pending
        for held, held.num_blocks, held.is_protected, free in holdings:
            held.free = free.copy()
        for owner, name, value in states:
            setattr(owner, name, _copy(value))

    # The key of a state.

    def key(self) -> tuple[Any, ...]:
        """Return what matters of the state. Equal keys: the same can happen, and with the same results."""
        world, scheduler, blocks = self._world, self._world.scheduler, self._world.blocks
        finishing = scheduler._finished_in_flight
        in_steps = {row.request for step in world.steps for row in step.to_run.rows}
        alive = [r for r in world.requests if r in world.num_received or r in finishing or r in in_steps]
        ranks = {request: rank for rank, request in enumerate(alive)}
        numbers: dict[int, int] = {}
        cached = () if blocks.cache is None else blocks.cache._content
        requests = tuple([self._request_key(request, ranks, numbers, cached) for request in alive])
        kind, chosen = world.model.choice
        return (
            requests,
            tuple([self._step_key(step, ranks, numbers) for step in world.steps]),
            tuple([ranks[request] for request in scheduler.running]),
            tuple([ranks[request] for request in scheduler.waiting]),
            tuple([ranks[request] for request in finishing]),
            tuple(world.num_left.values()),
            tuple(world.events_left.values()),
            None if world.work is None else (world.work.launch is None, world.work.collect is None),
            self._outputs_key(),
            (kind, ranks.get(chosen, -1)) if chosen is not None else kind,
            world.model.version,
            world.pipeline.is_paused,
            tuple([block in cached for block in blocks.device._free]),
            self._cache_key(),
            self._fair_key(),
            self._states_key(ranks, numbers, cached),
        )

    def _request_key(
        self, request: Request, ranks: dict[Request, int], numbers: dict[int, int], cached: Any
    ) -> tuple[Any, ...]:
        params = request.params
        has_deadline = params.timeout_ms is not None or params.max_queue_ms is not None
        is_finished = request.status is Status.FINISHED
        table = [numbers.setdefault(block, len(numbers)) * 2 + (block in cached) for block in request.block_table]
        return (
            request.seed, -1 if request.parent is None else ranks.get(request.parent, -2), request.status.value,
            0 if is_finished else len(request.token_ids), request.num_computed_tokens, request.num_output_placeholders,
            min(request.num_preemptions, MAX_PREEMPTIONS),
            request.num_read_tokens if request.needs_prompt_logprobs else 0,
            len(self._world.texts._prompt_logprobs.get(request, ())), request.first_scheduled_time is None,
            request.arrival_time - self._world.now if has_deadline else 0, *table,
        )  # fmt: skip

    def _step_key(self, step: Any, ranks: dict[Request, int], numbers: dict[int, int]) -> tuple[Any, ...]:
        def renamed(pairs: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
            return tuple([(numbers.setdefault(a, len(numbers)), numbers.setdefault(b, len(numbers))) for a, b in pairs])

        moves: Moves = step.to_run.moves
        swaps = tuple([numbers.setdefault(block, len(numbers)) for block, _ in moves.swap_out])
        swaps_in = tuple([numbers.setdefault(block, len(numbers)) for _, block in moves.swap_in])
        rows = [(ranks[r.request], r.start, r.num_tokens, r.needs_sampling, r.num_drafts) for r in step.to_run.rows]
        scheduled = step.scheduled
        return (
            step.state.name, tuple(rows), swaps, swaps_in, renamed(moves.copies), scheduled.batch.needs_host,
            scheduled.is_observed,
        )  # fmt: skip

    def _outputs_key(self) -> Any:
        if self._world.outputs is None:
            return None
        return tuple([(output.token_ids, output.failure is None, output.num_drafts) for output in self._world.outputs])

    def _cache_key(self) -> tuple[Any, ...]:
        """Return the free cached blocks by their contents, in the order in which they came free."""
        shares = self._shares
        if shares is None or self._world.blocks.cache is None:
            return ()
        content = self._world.blocks.cache._content
        free = sorted((time, block) for held in shares._holdings.values() for block, time in held.free.items())
        several: Callable[[], Any] = lambda: sorted((h.tenant, h.is_protected) for h in shares._holdings.values())  # noqa: E731
        tenants = tuple(several()) if len(shares._holdings) > 1 else ()
        return tuple([content[block].block_hash for _, block in free]), tenants

    def _fair_key(self) -> tuple[Any, ...]:
        counters = self._world.scheduler._counters
        if counters is None:
            return ()
        closed = [(name, most, end - counters._num_steps) for name, (most, end) in counters._ceilings.items()]
        charged = tuple(sorted(counters._charged.items()))
        return charged, counters._level, counters._last, tuple(sorted(row for row in closed if row[2] > 0))

    def _states_key(self, ranks: dict[Request, int], numbers: dict[int, int], cached: Any) -> tuple[Any, ...]:
        """Return the states of a hybrid's requests, and checkpoints in the order of their eviction."""
        if (memory := self._world.states) is None:
            return ()
        table, slots = memory.slots.checkpoints, dict[int, int]()
        order = [entry[2] for entry in sorted(table._heap, key=lambda entry: entry[:2]) if not table._is_stale(entry)]
        places = {kept: place for place, kept in enumerate(dict.fromkeys(order))}
        owners = {state: ranks[request] for request, state in memory._states.items()}

        def slot(number: int) -> int:
            return -1 if number < 0 else slots.setdefault(number, len(slots))

        def key(kept: Any) -> Any:
            if not isinstance(kept.key, int):
                return ranks.get(kept.key.parent, -2)
            return cached[kept.key].block_hash if kept.key in cached else b""

        def block(number: int | None) -> int:
            return -1 if number is None else numbers.setdefault(number, len(numbers)) * 2 + (number in cached)

        return (
            tuple(
                (rank, state.position, state.num_tail, slot(state.slot), state.host_slot >= 0, state.num_in_chain,
                 state.last_kept, *(places.get(kept, -1) for kept in (state.found, state.trail, *state.elsewhere)))
                for state, rank in owners.items()
            ),
            tuple(
                (slot(target), slot(row.source), *((tuple(item.position), slot(item.slot), block(item.block),
                 owners.get(item.state, -1)) for item in row.pending))
                for target, row in memory._in_flight.items()
            ),
            tuple(
                (key(kept), slot(kept.slot), kept.tenant, kept.gain, kept.is_end, kept.num_hits,
                 kept.rank - table._level)
                for kept in places
            ),
        )  # fmt: skip


def _copy(value: Any) -> Any:
    return value[:] if isinstance(value, list) else value
