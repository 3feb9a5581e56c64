"""Number of state slots of a model with recurrent layers: states come first, checkpoints get a share of the rest."""

from ...config import ResolvedConfig
from ...errors import ConfigError
from .state_places import StateSpec

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
