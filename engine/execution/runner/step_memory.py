"""Memory of a GPU that a step takes, measured before the KV cache gets the rest."""

from typing import Any

import torch

from ...device import stream_of
from ..models.device_memory import DeviceMemory, refusing_out_of_memory
from ..models.kv_cache import KVCache, StatePool
from .async_runner import AsyncRunner, decode_planner
from .cuda_graphs import graph_bytes, graph_sizes, mixed_graph_sizes
from .rehearsal import compile_kernels


def measure_step_bytes(
    model: Any,
    memory: DeviceMemory,
    *,
    device: torch.device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    block_size: int,
    enforce_eager: bool,
    **sizes: Any,
) -> int:
    """Return the bytes of the largest step, which runs over padding with a cache of one block.

    `model` is a Decoder, `sizes` are AsyncRunner's: max_num_tokens, max_num_seqs, max_model_len. Raises ConfigError
    if the step does not fit.
    """

    def largest_step() -> None:
        pool = StatePool(1, dtype)
        cache = KVCache(
            model.config, num_blocks=1, block_size=block_size, dtype=cache_dtype, device=device, states=pool
        )
        planner = decode_planner(model.config, cache, dtype=dtype, device=device)
        AsyncRunner(model, cache, stream_of(device), device=device, planner=planner, **sizes).rehearse_largest()

    way_out = (
        f"a step of {sizes['max_num_tokens']} tokens and {sizes['max_num_seqs']} sequences does not fit beside the "
        "weights; lower --max-num-batched-tokens, --max-num-seqs or --max-model-len"
    )
    with refusing_out_of_memory(way_out):
        compile_kernels(largest_step, device)
        num_bytes = memory.peak(largest_step)
    if enforce_eager:
        return num_bytes
    num_graphs = len(graph_sizes(sizes["max_num_seqs"])) + len(mixed_graph_sizes(sizes["max_num_tokens"]))
    return 2 * num_bytes + graph_bytes(num_graphs)  # graphs have a memory pool of the largest graph's size
