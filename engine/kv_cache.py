"""KVCache: the memory of keys and values, cut into blocks, and how many blocks there can be."""

import os
from pathlib import Path

import torch
from torch import Tensor

from ..kernels import ops
from .config import EngineConfig, ModelConfig, num_blocks_for
from .errors import ConfigError

# Share of the free memory that a CPU server takes for its cache when nobody says how much.
_CPU_MEMORY_SHARE = 0.25


class KVCache:
    """Per layer K and V, each [num_blocks, num_kv_heads, block_size, head_dim]: one block of a head is contiguous."""

    def __init__(
        self, model: ModelConfig, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        shape = (num_blocks, model.num_kv_heads, block_size, model.head_dim)

        # Not zeroed: kernels never read a slot that was not written, and untouched pages cost no memory.
        def layer() -> tuple[Tensor, Tensor]:
            return torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device)

        self.layers = [layer() for _ in range(model.num_layers)]

    def copy_blocks(self, source: Tensor, target: Tensor) -> None:
        """Copy blocks source[i] → target[i] in every layer; both [n] int64."""
        ops.copy_blocks([cache for layer in self.layers for cache in layer], source, target)


def num_cache_blocks(
    config: EngineConfig, model: ModelConfig, *, max_model_len: int, dtype: torch.dtype, device: torch.device
) -> int:
    """How many blocks the cache gets: as told, else from free memory, never more than all sequences at full length.

    Raises ConfigError if not even one block fits.
    """
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    block_bytes = config.block_size * model.kv_bytes_per_token(dtype.itemsize)
    useful = config.max_num_seqs * num_blocks_for(max_model_len, config.block_size)
    budget = config.kv_cache_memory_bytes
    if budget is None:
        budget = _free_bytes(config, device)
    blocks = min(budget // block_bytes, useful)
    if blocks < 1:
        raise ConfigError(
            f"KV cache: one block of {config.block_size} tokens needs {block_bytes} bytes, {budget} are there; "
            "raise --kv-cache-memory-bytes or --gpu-memory-utilization"
        )
    return blocks


def _free_bytes(config: EngineConfig, device: torch.device) -> int:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # What is used now stays used; activations of a step come on top, for which 2 % are left.
        return int(total * (config.gpu_memory_utilization - 0.02)) - (total - free)
    return int(available_memory() * _CPU_MEMORY_SHARE)


def available_memory() -> int:
    """Bytes of main memory that this process may still take: of the machine, or of its container if that is less."""
    available = _meminfo("MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return available
    return min(available, max(0, limit - used))


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
