"""KVCache: the memory of keys and values, cut into blocks, and how many blocks there can be."""

import time

import torch
from torch import Tensor

from ...kernels import ops
from ..config import EngineConfig
from ..errors import ConfigError
from .config import ModelConfig
from .device_memory import DeviceMemory, available_memory

# Share of the free memory that a CPU server takes for its cache by default.
_CPU_MEMORY_SHARE = 0.25

BlockPairs = list[tuple[int, int]]


class KVCache:
    """Per layer K and V, each [num_blocks, num_kv_heads, block_size, head_dim]: one block of a head is contiguous."""

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

        # Not zeroed: kernels never read a slot that was not written, and untouched pages cost no memory.
        def layers(count: int, *, on: torch.device) -> list[tuple[Tensor, Tensor]]:
            shape = (count, model.num_kv_heads, block_size, model.head_dim)
            pinned = on.type == "cpu" and device.type == "cuda"
            return [
                tuple(torch.empty(shape, dtype=dtype, device=on, pin_memory=pinned) for _ in range(2))  # type: ignore[misc]
                for _ in range(model.num_layers)
            ]

        try:
            self.layers = layers(num_blocks, on=device)
            self._host_layers = layers(num_host_blocks, on=torch.device("cpu")) if num_host_blocks else []
        except RuntimeError as exc:  # torch's out of memory is one
            block_bytes = block_size * model.kv_bytes_per_token(dtype.itemsize)
            raise ConfigError(
                f"KV cache: {num_blocks} blocks and {num_host_blocks} on the host, of {block_bytes} bytes each, "
                "cannot be allocated; set --kv-cache-memory-bytes or --swap-space lower"
            ) from exc

    def copy_blocks(self, *, swap_out: BlockPairs, swap_in: BlockPairs, copies: BlockPairs) -> None:
        """Copy blocks (from, to) before a step: out to the host, in from it, then within the device."""
        if swap_out:
            _copy(swap_out, self.layers, self._host_layers)
        if swap_in:
            _copy(swap_in, self._host_layers, self.layers)
        if copies:
            pairs = torch.tensor(copies, device=self._device)
            caches = [cache for layer in self.layers for cache in layer]
            ops.copy_blocks(caches, pairs[:, 0].contiguous(), pairs[:, 1].contiguous())

    def measure_swap(self) -> float | None:
        """Seconds to copy one block one way, measured; None without room to swap. Leaves rubbish in some blocks."""
        if not self._host_layers:
            return None
        count = min(32, len(self.layers[0][0]), len(self._host_layers[0][0]))
        pairs = [(block, block) for block in range(count)]
        _copy(pairs, self.layers, self._host_layers)  # touches the pages for the first time
        start = time.perf_counter()
        _copy(pairs, self._host_layers, self.layers)
        ops.synchronize(self._device)
        return (time.perf_counter() - start) / count


def _copy(
    pairs: list[tuple[int, int]], source: list[tuple[Tensor, Tensor]], target: list[tuple[Tensor, Tensor]]
) -> None:
    """Blocks from[i] of `source` into to[i] of `target`, in every layer, across devices."""
    indices = torch.tensor(pairs)
    from_device, to_device = source[0][0].device, target[0][0].device
    sources, targets = indices[:, 0].to(from_device), indices[:, 1].to(to_device)
    for from_layer, to_layer in zip(source, target, strict=True):
        for from_cache, to_cache in zip(map(_movable, from_layer), map(_movable, to_layer), strict=True):
            to_cache.index_copy_(0, targets, from_cache.index_select(0, sources).to(to_device))


def _movable(cache: Tensor) -> Tensor:
    """A cache of e4m3 as bytes, for torch indexes no such tensors."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache


def num_cache_blocks(
    config: EngineConfig, *, bytes_per_token: int, useful: int, memory: DeviceMemory | None, step_bytes: int
) -> int:
    """How many blocks the cache gets: as configured, else from free memory, at most `useful`.

    `bytes_per_token`: of keys and values, of all models that share these blocks. `memory`: the GPU's, None for a CPU;
    `step_bytes`: what its steps take beside weights and cache. Raises ConfigError if not even one block fits.
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
        return int(available_memory() * _CPU_MEMORY_SHARE)
    free, total = memory.free_and_total()  # what is used now stays used
    return int(total * config.gpu_memory_utilization) - (total - free) - step_bytes
