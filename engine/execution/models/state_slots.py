"""StatePlaces and StateSpec: slots of recurrent states, of a row and in all. Imports no torch.

The number of slots: states come first, checkpoints get a share of the rest.
"""

from typing import NamedTuple

from ...config import ResolvedConfig
from ...errors import ConfigError


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


# Share of the memory for checkpoints, beside the blocks that find them. A checkpoint of a model like Qwen3.5-0.8B takes
# as much as 1,600 tokens of its cache: with a quarter every fifth such prompt can have one.
_CHECKPOINT_SHARE = 0.25
_LEAST_CHECKPOINTS = 4


def state_slots(
    config: ResolvedConfig, slot_bytes: int, block_bytes: int, *, budget: int, swap_bytes: int, max_drafts: int
) -> StateSpec:
    """Return the numbers of slots for a cache of `budget` bytes, or beside the configured number of blocks.

    States come first, checkpoints get a share of the rest. `swap_bytes`: host memory for swapped requests.
    `max_drafts`: room of a slot. Raises ConfigError if states leave blocks no memory, on the device or the host.
    """
    num_live = num_live_slots(config.max_num_seqs, 2 if config.async_scheduling else 1)
    if config.num_kv_blocks is not None:
        share = config.num_kv_blocks * block_bytes * _CHECKPOINT_SHARE / (1 - _CHECKPOINT_SHARE)
        num_blocks = config.num_kv_blocks
    else:
        left = budget - num_live * slot_bytes
        if left < block_bytes + _LEAST_CHECKPOINTS * slot_bytes:
            raise ConfigError(
                f"KV cache: {num_live} recurrent states for {config.max_num_seqs} sequences, of {slot_bytes} "
                f"bytes each, leave no memory for blocks of the {max(budget, 0)} bytes; lower --max-num-seqs, or raise "
                "--kv-cache-memory-bytes"
            )
        share, num_blocks = left * _CHECKPOINT_SHARE, min(left // block_bytes, config.most_blocks)
    if 0 < swap_bytes < 2 * slot_bytes:
        raise ConfigError(
            f"--swap-space: a recurrent state takes {slot_bytes} bytes, and blocks as much again; set it to "
            f"{2 * slot_bytes / 2**30:.2g} GiB or more, or to 0"
        )
    # Two for each request of few blocks, at the ends of its prompt and of its output.
    most = max(_LEAST_CHECKPOINTS, num_blocks // 2)
    return StateSpec(
        num_live,
        min(most, max(_LEAST_CHECKPOINTS, int(share) // slot_bytes)),
        max_drafts,
        slot_bytes=slot_bytes,
        num_host=min(config.max_num_seqs, swap_bytes // 2 // slot_bytes),  # blocks keep half or more
        slot_blocks=slot_bytes / block_bytes,
    )


def num_live_slots(max_num_seqs: int, max_steps_in_flight: int) -> int:
    """Return how many states can be in use at once: each row in flight reads one slot and writes another."""
    return 2 * max_num_seqs * max_steps_in_flight
