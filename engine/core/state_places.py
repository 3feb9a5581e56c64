"""StatePlaces: slots of a row's recurrent state. The core carries them from the block manager to the runner."""

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
