"""MemoryPlan: memory that a model would take of a machine, computed before anything is loaded."""

from dataclasses import dataclass
from pathlib import Path

import torch

from ..config import EngineConfig, ResolvedConfig
from ..config.host_memory import available_memory
from ..core.block_allocator import num_blocks_for
from ..core.state_places import StateSpec
from ..execution.models.config import ModelConfig
from ..execution.models.kv_cache import CPU_MEMORY_SHARE, kv_bytes_per_token
from ..execution.models.layer_states import LatentKV
from ..execution.models.planned_weights import WeightLayout, planned_weight_bytes
from ..execution.models.registry import read_model_config
from .loading import (
    check_parallel,
    check_quantization,
    resolve_cache_dtype,
    resolve_device,
    resolve_dtype,
    resolve_max_model_len,
    state_spec,
)

# A process beside weights and cache: Python and torch's libraries; on a GPU its CUDA context.
_CPU_PROCESS_BYTES, _GPU_PROCESS_BYTES = 350 * 2**20, 500 * 2**20
_NCCL_BYTES = 500 * 2**20  # buffers of a rank on a GPU: an estimate


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes and blocks of one rank. `num_blocks` may be 0, or negative if the weights do not fit."""

    model_config: ModelConfig
    device: str
    dtype: str
    num_ranks: int
    weight_bytes: int
    step_bytes: int  # largest step on a GPU, estimated
    token_bytes: int  # keys and values of a token
    block_size: int
    num_blocks: int
    max_model_len: int
    states: StateSpec | None = None  # slots of recurrent states; None: no layer is recurrent

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the cache holds."""
        return max(0, self.num_blocks) * self.block_size

    @property
    def num_requests(self) -> float:
        """Number of requests of max_model_len that the cache holds."""
        return self.num_tokens / self.max_model_len

    @property
    def fits(self) -> bool:
        """True if one request of max_model_len can be served."""
        return self.num_tokens >= self.max_model_len


def plan_memory(config: EngineConfig, folder: Path, *, memory: int | None = None, num_ranks: int = 1) -> MemoryPlan:
    """Plan for the model in this folder or GGUF file. Reads config.json and headers, no weights.

    `memory`: bytes that are free before the start, on a GPU its whole memory; None: the free memory of this machine.
    `num_ranks`: processes that share weights and KV heads. Raises ConfigError.
    """
    model = read_model_config(folder, rope_scaling=config.rope_scaling, impl=config.model_impl)
    check_quantization(config, model)
    check_parallel(num_ranks, model)
    device = torch.device("cuda") if config.device == "cuda" and memory is not None else resolve_device(config.device)
    config, is_gpu = ResolvedConfig.of(config, device=device.type), device.type == "cuda"
    dtype = resolve_dtype(config.dtype, model, device)
    max_model_len = resolve_max_model_len(config, model)
    layout = WeightLayout(dtype=dtype, quantization=config.quantization, is_gpu=is_gpu)
    weight_bytes = planned_weight_bytes(folder, model, layout, max_model_len=max_model_len, num_ranks=num_ranks)
    step_bytes = _step_bytes(config, model, dtype.itemsize) if is_gpu else 0
    rank = model.with_kv_heads(max(1, model.num_kv_heads // num_ranks))
    token_bytes = max(1, kv_bytes_per_token(rank, resolve_cache_dtype(config.kv_cache_dtype, dtype, device)))
    useful = config.max_num_seqs * num_blocks_for(max_model_len, config.block_size)
    if config.kv_cache_memory_bytes is not None:  # for each GPU; on a CPU all ranks share it
        budget = config.kv_cache_memory_bytes // (1 if is_gpu else num_ranks)
    else:
        room = _gpu_room if is_gpu else _cpu_room
        budget = room(config, memory, weight_bytes + step_bytes, num_ranks=num_ranks)
    states = state_spec(config, model, dtype, token_bytes=token_bytes, budget=budget, useful=useful)
    if states is not None:
        budget -= states.num_slots * states.slot_bytes
    return MemoryPlan(
        model_config=model,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        num_ranks=num_ranks,
        weight_bytes=weight_bytes,
        step_bytes=step_bytes,
        token_bytes=token_bytes,
        block_size=config.block_size,
        num_blocks=config.num_kv_blocks or min(budget // (token_bytes * config.block_size), useful),
        max_model_len=max_model_len,
        states=states,
    )


def _cpu_room(config: EngineConfig, memory: int | None, rank_bytes: int, *, num_ranks: int) -> int:
    """Return the bytes for one rank's cache: a share of the memory that the weights leave (kv_cache.py)."""
    free = available_memory() + _CPU_PROCESS_BYTES if memory is None else memory  # this process has loaded torch
    return int((free - num_ranks * (rank_bytes + _CPU_PROCESS_BYTES)) * CPU_MEMORY_SHARE) // num_ranks


def _gpu_room(config: EngineConfig, memory: int | None, rank_bytes: int, *, num_ranks: int) -> int:
    total = torch.cuda.mem_get_info()[1] if memory is None else memory  # each rank has a GPU
    return int(total * config.gpu_memory_utilization) - rank_bytes - _GPU_PROCESS_BYTES - _NCCL_BYTES * (num_ranks > 1)


def _step_bytes(config: ResolvedConfig, model: ModelConfig, itemsize: int) -> int:
    """Estimate the largest step, which `serve` measures: its widest activations and its logits; twice with graphs."""
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    if latents := [state for state in model.layer_states if isinstance(state, LatentKV)]:
        heads += 2 * model.num_heads * (latents[0].rank + latents[0].rope_dim)  # queries and sums as wide as latents
    width = 4 * model.hidden_size + heads + 3 * model.intermediate_size
    num_bytes = config.max_num_batched_tokens * width * itemsize + config.max_num_seqs * model.vocab_size * (
        itemsize + 3 * 4
    )
    return num_bytes if config.enforce_eager else 2 * num_bytes
