"""StatePlaces and StateSpec: slots of recurrent states, of a row and in all. Imports no torch."""

from typing import NamedTuple


class StatePlaces(NamedTuple):
    """Slots that a row reads and writes; no step writes a slot that it reads, so a row can run again.

    source's state | `num_replayed` drafts in the source's tail that were accepted | the row's own tokens, the last of
    which may be drafts: they go to the target's tail, not into its state
    """

    source: int  # -1: none, the row has the request's first tokens
    target: int
    num_replayed: int
    checkpoints: tuple[tuple[int, int], ...] = ()  # (number of tokens behind the source's state, slot), ascending


class StateSpec(NamedTuple):
    """Numbers of state slots: for the states that can be in use at once, and for checkpoints beside them."""

    num_live: int
    num_checkpoints: int
    max_drafts: int = 0  # drafts that a slot has room for
    grid: int = 256  # tokens between checkpoints of a long prompt
    slot_bytes: int = 0
    num_host: int = 0  # slots on the host, for swapped requests
    slot_blocks: float = 0.0  # bytes of a slot, in blocks

    @property
    def num_slots(self) -> int:
        """Number of all slots."""
        return self.num_live + self.num_checkpoints

    def __str__(self) -> str:
        size = f"{self.slot_bytes / 2**20:.3g} MiB"
        host = f" + {self.num_host} on the host" if self.num_host else ""
        return f"{self.num_live} slots for requests + {self.num_checkpoints} for checkpoints{host}, {size} each"
