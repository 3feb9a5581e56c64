"""Bugs of state slots and checkpoints."""

from dataclasses import replace
from typing import Any

from planted_bug import Bugs, Method, plant

from splitfuse.engine.extras.hybrid.request_states import RequestStates

BUGS: Bugs = {}


@plant(BUGS, RequestStates, "place")
def state_is_freed_before_its_row_has_run(right: Method, self: Any, rows: Any) -> Any:
    for row in rows:
        if self._states[row.request].slot >= 0:
            self.slots.free(self._states[row.request].slot)
    placed = right(self, rows)
    for row in placed:
        self._in_flight[row.beside.target] = self._in_flight[row.beside.target]._replace(source=-1)
    return placed


@plant(BUGS, RequestStates, "_places")
def checkpoint_is_taken_one_token_late(right: Method, self: Any, row: Any, target: int) -> Any:
    places = right(self, row, target)
    most = places.num_replayed + row.num_tokens - row.num_drafts
    late = tuple((min(num_tokens + 1, most), slot) for num_tokens, slot in places.checkpoints)
    return places._replace(checkpoints=late)


@plant(BUGS, RequestStates, "_places")
def rollback_keeps_a_drafted_state(right: Method, self: Any, row: Any, target: int) -> Any:
    num_tail = self._states[row.request].num_tail
    return right(self, row, target)._replace(num_replayed=num_tail)


@plant(BUGS, RequestStates, "_places")
def accepted_drafts_are_not_replayed(right: Method, self: Any, row: Any, target: Any) -> Any:
    return right(self, row, target)._replace(num_replayed=0)


@plant(BUGS, RequestStates, "find_prefix")
def blocks_are_found_without_a_state(right: Method, self: Any, request: Any, first: Any) -> Any:
    prefix = right(self, request, first)
    found = self._blocks.cached(request)
    size = self._blocks.device.block_size
    if prefix.checkpoint is None or prefix.copied is not None or prefix.num_tokens % size:
        return prefix
    return replace(prefix, num_tokens=found.num_tokens, blocks=found.blocks, num_in_chain=found.num_tokens)


@plant(BUGS, RequestStates, "_drop_state")
def state_of_an_ended_request_leaks(right: Method, self: Any, request: Any) -> Any:
    return self._states.pop(request, None)


@plant(BUGS, RequestStates, "take_moves")
def state_of_a_swapped_request_is_not_brought_back(right: Method, self: Any, moves: Any) -> Any:
    moves = right(self, moves)
    return moves._replace(beside=moves.beside and moves.beside._replace(swap_in=[]))


@plant(BUGS, RequestStates, "take_moves")
def state_comes_back_to_another_slot(right: Method, self: Any, moves: Any) -> Any:
    moves, num_slots = right(self, moves), self.slots.num_slots
    if moves.beside is None:
        return moves
    swap_in = [(start, (to + 1) % num_slots) for start, to in moves.beside.swap_in]
    return moves._replace(beside=moves.beside._replace(swap_in=swap_in))


@plant(BUGS, RequestStates, "_free_host_slot")
def host_slot_is_not_freed(right: Method, self: Any, state: Any) -> None:
    state.host_slot = -1
