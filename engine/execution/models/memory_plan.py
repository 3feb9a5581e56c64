"""MemoryPlan: division of a memory among weights, the largest step, blocks, state slots and host memory.

`serve` divides what is left once the weights are loaded; `splitfuse plan` what the files' headers predict.
"""

from dataclasses import dataclass

import torch

from ....kernels import ops
from ...config import ResolvedConfig
from ...errors import ConfigError
from .config import ModelConfig
from .layer_states import LatentKV, PagedKV, paged_parts, recurrent_parts
from .state_slots import StateSpec

_CPU_MEMORY_SHARE = 0.25  # of the free memory, for a CPU server's cache


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes and numbers of one rank. `num_blocks` may be 0, or negative if the weights do not fit."""

    config: ResolvedConfig
    model: ModelConfig  # with the KV heads that share the memory
    weight_bytes: int  # planned; 0: they are loaded
    step_bytes: int  # a GPU's largest step
    token_bytes: int  # keys and values of a token
    block_bytes: int  # a draft model's included
    cache_bytes: int  # memory for blocks
    num_blocks: int
    num_host_blocks: int
    states: StateSpec | None = None  # slots of recurrent states; None: no layer is recurrent

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the cache holds."""
        return max(0, self.num_blocks) * self.config.block_size

    @property
    def num_requests(self) -> float:
        """Number of requests of max_model_len that the cache holds."""
        return self.num_tokens / self.config.max_model_len

    @property
    def fits(self) -> bool:
        """True if one request of max_model_len can be served."""
        return self.num_tokens >= self.config.max_model_len

    def check(self) -> None:
        """Raise ConfigError if not even one block fits."""
        if self.num_blocks < 1:
            raise ConfigError(
                f"KV cache: one block of {self.config.block_size} tokens needs {self.block_bytes} bytes, "
                f"{max(self.cache_bytes, 0)} are there beside the weights and {self.step_bytes} for a step; raise "
                "--kv-cache-memory-bytes or --gpu-memory-utilization, or lower --max-num-batched-tokens or "
                "--max-num-seqs"
            )


def gpu_budget(config: ResolvedConfig, *, total: int, used: int) -> int:
    """Return the bytes for a GPU's blocks and states. `used`: weights, the largest step, other programs."""
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    return int(total * config.gpu_memory_utilization) - used


def cpu_budget(config: ResolvedConfig, *, free: int, num_ranks: int = 1) -> int:
    """Return the bytes for blocks and states of one of `num_ranks` that share a machine's free memory."""
    given = config.kv_cache_memory_bytes
    return (int(free * _CPU_MEMORY_SHARE) if given is None else given) // num_ranks


def divide_memory(
    config: ResolvedConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    *,
    budget: int,
    weight_bytes: int = 0,
    step_bytes: int = 0,
    draft: ModelConfig | None = None,
) -> MemoryPlan:
    """Divide `budget` bytes, and the swap space, among blocks and state slots.

    `model` has the KV heads that share the memory. `draft`: a model with a cache of equally many blocks. Raises
    ConfigError if state slots leave no memory for blocks.
    """
    token_bytes = kv_bytes_per_token(model, cache_dtype)
    shared_bytes = max(1, token_bytes + (kv_bytes_per_token(draft, dtype) if draft else 0))  # 0 without attention
    swap_bytes = int(config.swap_space * 2**30) if token_bytes else 0
    states = None
    if model.is_recurrent:
        from .state_slots import state_slots  # here: most models have no states

        slot_bytes = state_bytes(model, dtype, max_drafts=config.max_drafts)
        block_bytes = config.block_size * max(1, token_bytes)
        states = state_slots(
            config, slot_bytes, block_bytes, budget=budget, swap_bytes=swap_bytes, max_drafts=config.max_drafts
        )
        budget -= states.num_slots * slot_bytes
        swap_bytes -= states.num_host * slot_bytes
    block_bytes = config.block_size * shared_bytes
    return MemoryPlan(
        config=config,
        model=model,
        weight_bytes=weight_bytes,
        step_bytes=step_bytes,
        token_bytes=token_bytes,
        block_bytes=block_bytes,
        cache_bytes=budget,
        num_blocks=config.num_kv_blocks or min(budget // block_bytes, config.most_blocks),
        num_host_blocks=swap_bytes // (config.block_size * max(1, token_bytes)),
        states=states,
    )


def kv_bytes_per_token(model: ModelConfig, dtype: torch.dtype) -> int:
    """Return a token's bytes of keys and values over all layers, in a cache of this dtype."""
    return sum(_num_values(part, dtype) for part in paged_parts(model.kept_states)) * dtype.itemsize


def _num_values(part: PagedKV | LatentKV, dtype: torch.dtype) -> int:
    if isinstance(part, LatentKV):
        return ops.token_width(part.rank + part.rope_dim, dtype)
    return 2 * part.num_kv_heads * ops.token_width(part.head_dim, dtype)


def state_bytes(model: ModelConfig, dtype: torch.dtype, *, max_drafts: int = 0) -> int:
    """Return the bytes of a slot, a sequence's recurrent states over all layers; `dtype` is the model's."""
    return sum(part.num_bytes(dtype.itemsize, max_drafts) for part in recurrent_parts(model.layer_states))
