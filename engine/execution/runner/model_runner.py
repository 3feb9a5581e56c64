"""ModelRunner: owns the model and its cache on one device; a Batch goes in, one RowOutput per row comes out."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ....kernels import ops
from ...config import EngineConfig
from ...config.cores import default_num_threads
from ...core.batch import Batch, BatchRow, Moves, RowFailure, RowOutput
from ...core.block_allocator import num_blocks_for
from ...core.block_manager import CacheSpec
from ...core.policies import BATCHING_POLICIES
from ...device import stream_of
from ...errors import ConfigError
from ...extension import load_extra
from ..models.config import ModelConfig
from ..models.device_memory import memory_of, refusing_out_of_memory
from ..models.kv_cache import KVCache, kv_bytes_per_token, num_cache_blocks
from ..models.registry import model_class, read_model_config
from ..models.tensor_parallel import ALONE, TensorParallel
from ..models.weights import weight_source
from ..sampling.acceptance import NOT_FINITE
from ..sampling.prompt_logprobs import prompt_logprobs
from ..sampling.sampler import Sampler, sample_rows
from .async_runner import AsyncRunner
from .batch_arrays import build_inputs
from .cuda_graphs import CudaGraphCapturer, graph_sizes
from .step_memory import measure_step_bytes

_WEIGHT_BITS = {"int8": 8, "int4": 4}
_INPUT_BITS = {"none": 16, "int8": 8}
_TOO_LARGE = "the weights do not fit; try --quantization fp8, int8 or int4, or a smaller model"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# --kv-cache-dtype: what it is, on which device, and what to take on another.
_CACHE_DTYPES = {"int8": (torch.int8, "cpu", "fp8"), "fp8": (torch.float8_e4m3fn, "cuda", "int8")}


@dataclass(frozen=True)
class LoadedModel:
    """What loading found out."""

    model_config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    cache: CacheSpec
    op_by_op: str | None = None  # on a CPU, why the layers are not one native call


class ModelRunner:
    """Loads on construction, which can take long. Raises ConfigError. Use it from one thread."""

    def __init__(self, config: EngineConfig, folder: Path, *, draft: ModelConfig | None = None) -> None:
        """`draft`: a model that gets a cache of as many blocks beside this one's."""
        num_ranks, num_threads = config.tensor_parallel_size, config.num_threads or default_num_threads()
        torch.set_num_threads(max(1, num_threads // num_ranks))
        model_config = read_model_config(folder)
        check_quantization(config, model_config)
        device = resolve_device(config.device)
        dtype = resolve_dtype(config.dtype, model_config, device)
        cache_dtype = resolve_cache_dtype(config.kv_cache_dtype, dtype, device)
        max_model_len = resolve_max_model_len(config, model_config)
        config, memory = config.for_device(device.type), memory_of(device)
        self._device = device
        parallel = _parallel_extra(config)
        self.ranks = ranks = parallel and parallel.start_ranks(
            parallel.Setup(config, folder, device, dtype, max_model_len, torch.get_num_threads())
        )
        self._model = load_model(
            config,
            folder,
            model_config,
            device=device,
            dtype=dtype,
            max_model_len=max_model_len,
            parallel=ALONE if ranks is None else ranks.parallel,
        )
        make_cache: Callable[..., KVCache] = KVCache
        cached = model_config  # what all ranks have in their caches
        if ranks is not None:
            self._model = parallel.ParallelModel(self._model, ranks)
            make_cache = partial(parallel.ParallelCache, ranks=ranks)
            cached = parallel.cached_config(model_config, ranks.parallel)
        step_bytes = measure_step_bytes(
            self._model,
            memory,
            device=device,
            cache_dtype=cache_dtype,
            block_size=config.block_size,
            enforce_eager=config.enforce_eager,
            **_step_sizes(config, max_model_len),
        )
        num_blocks = num_cache_blocks(
            config,
            bytes_per_token=kv_bytes_per_token(cached, cache_dtype)
            + (kv_bytes_per_token(draft, dtype) if draft else 0),
            # All at full length.
            useful=config.step_limits.num_seqs * num_blocks_for(max_model_len, config.block_size),
            memory=memory,
            step_bytes=step_bytes,
        )
        block_bytes = config.block_size * kv_bytes_per_token(cached, cache_dtype)
        num_host_blocks = int(config.swap_space * 2**30) // block_bytes
        self._cache = make_cache(
            model_config,
            num_blocks=num_blocks,
            block_size=config.block_size,
            dtype=cache_dtype,
            device=device,
            num_host_blocks=num_host_blocks,
        )
        self._sampler = Sampler(device)
        self._launcher: AsyncRunner | None = None  # whose graphs serve batches that need the host, too
        self.loaded = LoadedModel(
            model_config=model_config,
            device=device,
            dtype=dtype,
            max_model_len=max_model_len,
            cache=CacheSpec(num_blocks, config.block_size, num_host_blocks, self._cache.measure_swap()),
            op_by_op=self._model.plan.refusal(self._cache) if device.type == "cpu" else None,
        )

    def close(self) -> None:
        """End the other ranks, if there are some. No further step is taken."""
        if self.ranks is not None:
            self.ranks.end()

    def launcher(self, config: EngineConfig) -> AsyncRunner:
        """Launches this model's steps without waiting for them, over the same cache."""
        loaded = self.loaded
        launcher = AsyncRunner(
            self._model,
            self._cache,
            stream_of(self._device),
            device=self._device,
            **_step_sizes(config, loaded.max_model_len),
            sampler=self._sampler,
        )
        self._launcher = launcher
        if self._device.type != "cuda":
            return launcher
        if not config.enforce_eager:
            launcher.use_graphs(
                CudaGraphCapturer(self._device),
                sizes=graph_sizes(config.step_limits.num_seqs),
                hidden_size=loaded.model_config.hidden_size,
                dtype=loaded.dtype,
            )
        launcher.compile_kernels()
        launcher.capture_graphs()
        return launcher

    @torch.inference_mode()
    def move(self, moves: Moves) -> None:
        """Copy the blocks that a step needs elsewhere, before it runs."""
        self._cache.copy_blocks(**moves._asdict())

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[RowOutput]:
        """Compute the batch and sample. Running rows again gives the same: they write the same cache slots."""
        hidden = None if self._launcher is None else self._launcher.hidden_states(batch)
        if hidden is None:
            inputs = build_inputs(batch, block_size=self._cache.block_size, device=self._device)
            hidden = self._model.forward(inputs, self._cache)
        num_samples = sum(row.num_drafts + 1 for row in batch.rows if row.needs_sampling)
        outputs = sample_rows(self._model.logits(hidden[:num_samples]), batch.rows, self._sampler)
        if len(hidden) == num_samples:
            return outputs
        states = torch.split(hidden[num_samples:], [len(row.prompt_logprob_positions) for row in batch.rows])
        return [self._with_prompt_logprobs(*each) for each in zip(batch.rows, outputs, states, strict=True)]

    def _with_prompt_logprobs(self, row: BatchRow, output: RowOutput, hidden: torch.Tensor) -> RowOutput:
        if not row.prompt_logprob_positions or output.failure is not None:
            return output
        vocab_size = self.loaded.model_config.vocab_size
        made = prompt_logprobs(row, hidden, self._model.logits, vocab_size=vocab_size)
        return RowOutput(failure=RowFailure(NOT_FINITE)) if made is None else output._replace(prompt_logprobs=made)


def _parallel_extra(config: EngineConfig) -> Any:
    """Return the module that starts ranks; None if one process has the whole model. Raises ConfigError."""
    if (config.tensor_parallel_slices or config.tensor_parallel_size) == 1:
        return None
    return load_extra("parallel.parallel_model", needed_for="--tensor-parallel-size")


def load_model(
    config: EngineConfig,
    folder: Path,
    model_config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_model_len: int,
    parallel: TensorParallel = ALONE,
) -> Any:
    """The model, or a rank's share of it, with its weights on the device. Raises ConfigError."""
    # While weights are read: the first start on a machine builds the CPU library, about 7 s.
    preparing = threading.Thread(target=ops.prepare, args=(device,), name="splitfuse-prepare")
    preparing.start()
    build = model_class(model_config.architecture)
    source = weight_source(
        folder,
        load_format=config.load_format,
        dtype=dtype,
        seed=config.seed,
        device=device,
        quantization=model_config.quantization,
    )
    with source as weights, refusing_out_of_memory(_TOO_LARGE):
        model = build(
            model_config,
            weights,
            device=device,
            max_model_len=max_model_len,
            dtype=dtype,
            weight_bits=_WEIGHT_BITS.get(config.quantization or "", 16),
            input_bits=_INPUT_BITS[config.quantization_activations],
            has_fp8_weights=config.quantization == "fp8",
            parallel=parallel,
        )
    preparing.join()
    return model


def _step_sizes(config: EngineConfig, max_model_len: int) -> dict[str, int]:
    """AsyncRunner's: the most that a step may have."""
    limits, whole_prompts = config.step_limits, BATCHING_POLICIES[config.batching_policy].whole_prompts
    num_tokens = max(limits.num_batched_tokens, max_model_len if whole_prompts else 0)
    return {"max_num_tokens": num_tokens, "max_num_seqs": limits.num_seqs, "max_model_len": max_model_len}


def resolve_device(name: str) -> torch.device:
    """The device for --device. Raises ConfigError if CUDA is asked for and not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA device; `splitfuse doctor` shows why, --device cpu works")
    return torch.device(name)


def resolve_dtype(name: str, model_config: ModelConfig, device: torch.device) -> torch.dtype:
    """The dtype for --dtype; auto is the checkpoint's, but on a CPU, where float16 is slow, bfloat16 instead of it."""
    if name == "auto":
        name = model_config.dtype
        if device.type == "cpu" and name == "float16":
            name = "bfloat16"
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} of config.json is not known; set --dtype to one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def resolve_cache_dtype(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype for --kv-cache-dtype. Raises ConfigError where there are no kernels for it.

    fp8 has keys and values as they are, at scale 1 as vLLM's default is: e4m3 is a float, so a scale moves its range
    (2^-9 to 448), not its precision.
    """
    if name == "auto":
        return dtype
    cache_dtype, device_type, other = _CACHE_DTYPES[name]
    if device.type != device_type:
        raise ConfigError(
            f"--kv-cache-dtype {name} is built for --device {device_type} only so far; take {other}, or leave it out"
        )
    return cache_dtype


def check_quantization(config: EngineConfig, model_config: ModelConfig) -> None:
    """Raise ConfigError if weights that are quantized already would be quantized."""
    if config.quantization and model_config.quantization and config.load_format != "dummy":
        raise ConfigError(
            f"--quantization {config.quantization} is for unquantized weights, but these are quantized already "
            f"({model_config.quantization.name}); leave it out"
        )


def resolve_max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    """The length for --max-model-len. Raises ConfigError if the model was not made for so many positions."""
    longest = model_config.max_len_limit
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ConfigError(
            f"--max-model-len {config.max_model_len} is more than the {longest} positions the model was made for"
        )
    return config.max_model_len or model_config.max_position_embeddings
