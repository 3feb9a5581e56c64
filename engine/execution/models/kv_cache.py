"""KVCache: memory of keys and values in blocks, and the number of blocks that fit."""

import time
from typing import TYPE_CHECKING

import torch

from ....kernels import ops
from ...config import EngineConfig
from ...config.host_memory import available_memory
from ...device import to_device
from ...errors import ConfigError
from .config import ModelConfig
from .device_memory import DeviceMemory

if TYPE_CHECKING:
    from .host_blocks import BlockPairs, HostBlocks

# Share of the free memory that a CPU server takes for its cache by default.
CPU_MEMORY_SHARE = 0.25


class KVCache:
    """K and V of each layer, [num_blocks, num_kv_heads, block_size, head_dim]: one block of a head is contiguous.

    In int8 the last dimension is wider, because a block holds its tokens' scales too (kernels/int8_cache.py).
    """

    def __init__(
        self,
        model: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        self._device = device

        shape = (num_blocks, model.num_kv_heads, block_size, ops.token_width(model.head_dim, dtype))
        # Not zeroed: kernels never read an unwritten slot, and untouched pages cost no memory.
        try:
            layers = [
                (torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
                for _ in range(model.num_cached_layers)
            ]
            self.layers = layers * (model.num_layers // model.num_cached_layers)
            self._caches = [cache for layer in layers for cache in layer]
            self._host_blocks = _host_blocks(self._caches, num_host_blocks) if num_host_blocks else None
        except RuntimeError as exc:  # base class of torch's out-of-memory errors
            block_bytes = block_size * kv_bytes_per_token(model, dtype)
            raise ConfigError(
                f"KV cache: {num_blocks} blocks and {num_host_blocks} on the host, of {block_bytes} bytes each, "
                "cannot be allocated; set --kv-cache-memory-bytes or --swap-space lower"
            ) from exc

    def copy_blocks(self, *, swap_out: "BlockPairs", swap_in: "BlockPairs", copies: "BlockPairs") -> None:
        """Copy blocks (from, to) before a step: out to the host, in from the host, then within the device.

        On a GPU the copies are only queued.
        """
        if self._host_blocks is not None:
            self._host_blocks.swap_out(swap_out)
            self._host_blocks.swap_in(swap_in)
        if copies:
            sources, targets = to_device(torch.tensor(copies).T.contiguous(), self._device)
            ops.copy_blocks(self._caches, sources, targets)

    def memory(self) -> list[torch.Tensor]:
        """Return every tensor of blocks, on the device and on the host."""
        return self._caches + ([] if self._host_blocks is None else self._host_blocks.pieces)

    def measure_swap(self) -> float | None:
        """Measure the seconds to copy one block one way; None without swap space. Overwrites some blocks."""
        if self._host_blocks is None:
            return None
        count = min(32, len(self._caches[0]), self._host_blocks.num_blocks)
        pairs = [(block, block) for block in range(count)]
        self._host_blocks.swap_out(pairs)  # touches the pages for the first time
        ops.synchronize(self._device)
        start = time.perf_counter()
        self._host_blocks.swap_in(pairs)
        ops.synchronize(self._device)
        return (time.perf_counter() - start) / count


def _host_blocks(caches: list[torch.Tensor], num_blocks: int) -> "HostBlocks":
    from .host_blocks import HostBlocks  # here: only a cache with swap space has some

    return HostBlocks(caches, num_blocks)


def kv_bytes_per_token(model: ModelConfig, dtype: torch.dtype) -> int:
    """Return a token's bytes of keys and values over all layers, in a cache of this dtype."""
    return 2 * model.num_cached_layers * model.num_kv_heads * ops.token_width(model.head_dim, dtype) * dtype.itemsize


def num_cache_blocks(
    config: EngineConfig, *, bytes_per_token: int, useful: int, memory: DeviceMemory | None, step_bytes: int
) -> int:
    """Return the cache's number of blocks: the configured one, else as many as fit free memory, at most `useful`.

    `bytes_per_token`: keys and values of all models that share the blocks. `memory`: the GPU's, None for a CPU.
    `step_bytes`: memory of a GPU's step besides weights and cache. Raises ConfigError if not even one block fits.
    """
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    block_bytes = config.block_size * bytes_per_token
    budget = config.kv_cache_memory_bytes
    if budget is None:
        budget = _budget(config, memory, step_bytes)
    blocks = min(budget // block_bytes, useful)
    if blocks < 1:
        raise ConfigError(
            f"KV cache: one block of {config.block_size} tokens needs {block_bytes} bytes, {max(budget, 0)} are there "
            f"beside the weights and {step_bytes} for a step; raise --kv-cache-memory-bytes or "
            "--gpu-memory-utilization, or lower --max-num-batched-tokens or --max-num-seqs"
        )
    return blocks


def _budget(config: EngineConfig, memory: DeviceMemory | None, step_bytes: int) -> int:
    if memory is None:
        return int(available_memory() * CPU_MEMORY_SHARE)
    free, total = memory.free_and_total()  # memory that is in use now stays in use
    return int(total * config.gpu_memory_utilization) - (total - free) - step_bytes
