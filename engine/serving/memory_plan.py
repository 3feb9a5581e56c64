"""Plan of a machine's memory for a model, made before anything is loaded."""

import time
from dataclasses import replace
from pathlib import Path

import torch

from ..config import EngineConfig, ResolvedConfig
from ..config.host import available_memory
from ..execution.models.config import ModelConfig
from ..execution.models.layer_states import LatentKV
from ..execution.models.memory_plan import MemoryPlan, cpu_budget, divide_memory, gpu_budget
from ..execution.models.planned_weights import WeightLayout, planned_weight_bytes
from ..execution.models.resolved_model import resolve

# A process beside weights and cache: Python and torch's libraries; on a GPU its CUDA context.
_CPU_PROCESS_BYTES, _GPU_PROCESS_BYTES = 350 * 2**20, 500 * 2**20
_SHARE_OF_READING = 0.85  # of memory's rate: one request of five shapes had 0.79 to 0.92 (tests/bench/RESULTS.md)
_READ_BYTES = 2**28  # more than caches hold
_NCCL_BYTES = 500 * 2**20  # buffers of a rank on a GPU: an estimate


def plan_memory(config: EngineConfig, folder: Path, *, memory: int | None = None, num_ranks: int = 1) -> MemoryPlan:
    """Plan for the model in this folder or GGUF file. Reads config.json and headers, no weights.

    `memory`: bytes that are free before the start, on a GPU its whole memory; None: the free memory of this machine.
    `num_ranks`: processes that share weights and KV heads. Raises ConfigError.
    """
    wishes = replace(config, tensor_parallel_size=num_ranks, tensor_parallel_slices=None)
    resolved = resolve(wishes, folder, needs_device=memory is None)
    facts, model, dtype = resolved.config, resolved.model, resolved.dtype
    is_gpu = facts.device == "cuda"
    layout = WeightLayout(dtype=dtype, quantization=config.quantization, is_gpu=is_gpu)
    weight_bytes = planned_weight_bytes(folder, model, layout, max_model_len=facts.max_model_len, num_ranks=num_ranks)
    step_bytes = 0
    if is_gpu:  # each rank has a GPU
        step_bytes = _step_bytes(facts, model, dtype.itemsize)
        total = torch.cuda.mem_get_info()[1] if memory is None else memory
        used = weight_bytes + step_bytes + _GPU_PROCESS_BYTES + _NCCL_BYTES * (num_ranks > 1)
        budget = gpu_budget(facts, total=total, used=used)
    else:
        free = available_memory() + _CPU_PROCESS_BYTES if memory is None else memory  # this process has loaded torch
        free -= num_ranks * (weight_bytes + _CPU_PROCESS_BYTES)
        budget = cpu_budget(facts, free=free, num_ranks=num_ranks)
    rank = model.with_kv_heads(max(1, model.num_kv_heads // num_ranks))
    dtypes = (dtype, resolved.cache_dtype)
    return divide_memory(facts, rank, *dtypes, budget=budget, weight_bytes=weight_bytes, step_bytes=step_bytes)


def expected_speed(found: MemoryPlan) -> float | None:
    """Estimate the tokens per second of one request on this CPU, whose memory is read for a moment; None on a GPU.

    A token reads all weights once, of a mixture the chosen experts.
    """
    if found.config.device != "cpu":
        return None
    model, experts = found.model, found.model.hf_config.get("experts")
    heads = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim
    others = model.hidden_size * (model.num_layers * heads + model.vocab_size)  # matrices beside the experts
    share = 1.0
    if experts is not None:
        one = 3 * model.hidden_size * experts.intermediate_size * len(experts.layers)
        share = (others + one * experts.num_experts_per_tok) / (others + one * experts.num_experts)
    return _SHARE_OF_READING * _bytes_read_per_second() / (found.weight_bytes * share)


def _bytes_read_per_second() -> float:
    values, seconds = torch.ones(_READ_BYTES // 4), []
    for _ in range(4):
        begin = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - begin)
    return _READ_BYTES / min(seconds)


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
