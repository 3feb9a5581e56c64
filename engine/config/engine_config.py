"""EngineConfig: the user's wishes for the engine; ResolvedConfig has what was decided. Imports no torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import ConfigError
from .named_models import DEMO, DEMO_DRAFT, DEMO_MODEL, SMOLLM2
from .setting import check, setting
from .speculative_config import SpeculativeConfig


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """All settings of the engine; names are the command line's flags. Raises ConfigError.

    None means "decide from the model and the machine".
    """

    model: str | None = setting(
        None, help=f"Hugging Face id, folder, .gguf file, {SMOLLM2}, or {DEMO}; nothing = the bundled {DEMO} model"
    )
    served_model_name: str | None = setting(
        None, help="served names of the model, with commas; claude-* stands for every name with that beginning"
    )
    revision: str | None = setting(None, help="branch, tag or commit of the model on the hub")
    device: str = setting("auto", choices=("auto", "cpu", "cuda"), help="where the model runs")
    dtype: str = setting("auto", choices=("auto", "float32", "bfloat16", "float16"), help="for weights and activations")
    load_format: str = setting("auto", choices=("auto", "safetensors", "dummy"), help="dummy: random weights")
    quantization: str | None = setting(
        None, choices=("int8", "int4", "fp8"), help="round weights to this at load; fp8: e4m3, for GPUs from 8.9 on"
    )
    model_impl: str = setting("auto", choices=("auto", "native", "transformers", "vllm"), help="code of the layers")
    quantization_activations: str = setting(
        "auto",
        choices=("auto", "none", "int8"),
        help="int8: round inputs of packed weights (GPU: int8, FP8 experts); auto: MLPs' on CPUs with VNNI and no AMX",
    )
    kv_cache_dtype: str = setting(
        "auto",
        choices=("auto", "int8", "fp8"),
        help="auto: the model's; int8 (CPU), fp8: e4m3 (CUDA): rounded, twice the tokens in the same memory",
    )
    max_model_len: int | None = setting(  # at least one token of prompt and one of output
        None, at_least=2, help="longest prompt plus output, in tokens; less needs less memory"
    )
    rope_scaling: dict[str, Any] | None = setting(
        None, help='serve more positions than the model was made for, as JSON: {"rope_type": "yarn", "factor": 4}'
    )
    max_num_seqs: int | None = setting(
        None, at_least=1, decides=True, help="most sequences in one step; nothing = 64, on a GPU 256"
    )
    max_num_batched_tokens: int | None = setting(
        None, at_least=1, decides=True, help="token budget of one step; nothing = 512, on a GPU 2048"
    )
    long_prefill_token_threshold: int | None = setting(  # see ResolvedConfig
        None, at_least=0, decides=True, help="most tokens of a prompt a step; 0 = all; nothing = 256 on a CPU"
    )
    block_size: int = setting(16, at_least=1, decides=True, help="tokens in one block of the KV cache")
    gpu_memory_utilization: float = setting(0.9, above=0, at_most=1, help="share of the GPU's memory to use")
    kv_cache_memory_bytes: int | None = setting(None, at_least=1, help="size, as 4GiB; nothing = free memory / 4 (CPU)")
    num_kv_blocks: int | None = setting(
        None, at_least=1, help="number of blocks in the KV cache; overrides the measured size"
    )
    swap_space: float = setting(0.0, at_least=0, decides=True, help="GiB of host memory for swapped-out blocks")
    enable_prefix_caching: bool = setting(True, decides=True, help="reuse the blocks of a shared prompt beginning")
    prefix_cache_dir: str | None = setting(
        None, repr=False, help="folder of blocks that outlive the process, so that a known prompt need not be computed"
    )
    prefix_cache_disk_bytes: int = setting(
        10 * 2**30, at_least=1, help="most bytes of --prefix-cache-dir; takes KiB, MiB, GiB"
    )
    prefix_cache_key_file: str | None = setting(
        None, repr=False, help="file with a key that encrypts --prefix-cache-dir; nothing = --results-key-file's"
    )
    batching_policy: str = setting(
        "splitfuse",
        choices=("splitfuse", "prefill_first", "decode_first", "static"),
        decides=True,
        help="which requests may share a step",
    )
    scheduling_policy: str = setting(
        "auto",
        choices=("auto", "fcfs", "priority", "fair"),
        decides=True,
        help="queue order; fair: between keys, or users; auto: fair with several keys, else fcfs",
    )
    # Not in the repr, because it may contain keys.
    tenant_weights: dict[str, float] | None = setting(
        None, repr=False, decides=True, help='weights for fair, as JSON: {"USER or API key": 2}; 1 for all others'
    )
    max_seqs_per_key: int | None = setting(
        None, at_least=1, decides=True, help="most running sequences of one key, or user; further ones wait"
    )
    preemption_mode: str = setting(
        "auto", choices=("auto", "recompute", "swap"), decides=True, help="how a request is preempted"
    )
    target_itl_ms: float | str | None = setting(
        None,
        above=0,
        words=("auto", "off"),
        help="longest gap between tokens to aim at, in ms; auto: the shortest that costs at most 2.5 % of throughput; "
        "nothing = auto for streams",
    )
    ttft_ms: float | None = setting(None, above=0, help="goal of requests without one: ms until the first token")
    itl_ms: float | None = setting(None, above=0, help="goal of requests without one: mean ms between tokens")
    # Not in the repr, because it may contain keys.
    tenant_goals: dict[str, dict[str, float]] | None = setting(
        None, repr=False, help='goals per tenant, as JSON: {"USER or API key": {"ttft_ms": 500, "itl_ms": 50}}'
    )
    max_queue_size: int = setting(1024, at_least=1, help="most waiting requests; further ones are answered 429")
    max_queue_chars: int = setting(
        16 * 2**20, at_least=1, help="most characters of prompts being tokenized; further ones are answered 429"
    )
    max_queue_seconds: float | None = setting(
        None, above=0, help="refuse (429) when the predicted time to a first token is longer"
    )
    async_scheduling: bool | None = setting(None, help="schedule a step while the last one runs; nothing = on a GPU")
    tensor_parallel_size: int = setting(1, at_least=1, help="processes, or GPUs, that share each matrix (Linux)")
    tensor_parallel_slices: int | None = setting(
        None, at_least=1, help="slices of a matrix in its sums: equal bits for any number of processes that divides it"
    )
    enforce_eager: bool = setting(False, help="run without CUDA graphs")
    exact: bool | None = setting(
        None, help="answers keep their bits whatever else runs, where kernels can do that; nothing = on a CPU"
    )
    seed: int = setting(0, decides=True, help="seed of requests without one")
    num_threads: int | None = setting(
        None, at_least=1, help="CPU threads of the model; nothing = the cores of this process"
    )
    log_steps: bool = setting(False, help="print one line per step")
    record: str | None = setting(None, help="write every decision and arrival to this file, for `splitfuse replay`")
    chat_template: str | None = setting(
        None, help="file with a chat template, or the template itself, instead of the model's own"
    )
    generation_config: str = setting(
        "auto", help="sampling fields that a request leaves out: auto = the model's, vllm = neutral, or a FOLDER's"
    )
    override_generation_config: dict[str, Any] | None = setting(
        None, help='single values of --generation-config, as JSON: {"temperature": 0.5}'
    )
    pooler_config: dict[str, Any] | None = setting(
        None, help='how a model makes embeddings, if its files do not say or say otherwise: {"pooling_type": "MEAN"}'
    )
    enable_lora: bool = setting(False, help="serve adapters (LoRA) beside the model, chosen by a request's `model`")
    lora_modules: tuple[str, ...] = setting(
        (), help='adapters to begin with, as NAME=PATH, or as JSON: {"name": "sql", "path": "PATH"}'
    )
    max_loras: int = setting(8, at_least=1, help="most adapters in memory; requests of others wait for a place")
    max_lora_rank: int = setting(256, at_least=1, at_most=256, help="largest rank of an adapter")
    speculative_config: dict[str, Any] | None = setting(
        None,
        word_key="model",
        help=f"speculative decoding: ngram, suffix, a draft model's folder or hub id (demo's: {DEMO_DRAFT}), or JSON: "
        '{"method": "ngram", "num_speculative_tokens": 4}',
    )

    def __post_init__(self) -> None:
        check(self)
        for tenant, weight in (self.tenant_weights or {}).items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
                raise ConfigError(f"tenant_weights: the weight of {tenant!r} must be a number above 0, not {weight!r}")
        for tenant, goals in (self.tenant_goals or {}).items():
            if not isinstance(goals, dict) or not _are_goals(goals):
                raise ConfigError(f"tenant_goals: {tenant!r} takes ttft_ms and itl_ms, numbers above 0, not {goals!r}")
        for is_refused, message in _REFUSED:
            if is_refused(self):
                raise ConfigError(message)
        if self.model_name.endswith("*"):
            raise ConfigError(f"served_model_name: the first name cannot end in *, as {self.model_name!r} does")
        _ = self.speculation  # checks it

    @property
    def queue_order(self) -> str:
        """Scheduling policy, also where it is "auto"."""
        return "fcfs" if self.scheduling_policy == "auto" else self.scheduling_policy

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """Settings of speculative decoding, None without it. Raises ConfigError."""
        return None if self.speculative_config is None else SpeculativeConfig.from_dict(self.speculative_config)

    @property
    def model_name(self) -> str:
        """Name under which the model is served, the first of several."""
        return self.model_names[0]

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """All names of the model; a name that ends in * stands for every name with that beginning."""
        names = tuple(name.strip() for name in (self.served_model_name or "").split(",") if name.strip())
        return names or (DEMO_MODEL if self.model in (None, DEMO) else str(self.model),)

    @property
    def listed_model_names(self) -> tuple[str, ...]:
        """Names of the model without a *."""
        return tuple(name for name in self.model_names if not name.endswith("*"))

    def serves(self, name: str) -> bool:
        """True if the model is served under this name."""
        return any(name.startswith(known[:-1]) if known.endswith("*") else name == known for known in self.model_names)

    @property
    def is_demo(self) -> bool:
        """True if the bundled demo model is served."""
        return self.model in (None, DEMO)


def _are_goals(goals: dict[str, float]) -> bool:
    are_numbers = all(type(value) in (int, float) and 0 < value < math.inf for value in goals.values())
    return bool(goals) and goals.keys() <= {"ttft_ms", "itl_ms"} and are_numbers


# Combinations that cannot work or are not built, with the messages. The first condition that holds raises ConfigError.
_REFUSED: tuple[tuple[Callable[[EngineConfig], object], str], ...] = (
    (
        lambda c: c.model is not None and not c.model.strip(),
        "model is an empty string; name a folder or hub id, or leave it out for the demo model",
    ),
    (lambda c: c.preemption_mode == "swap" and not c.swap_space, "preemption_mode swap needs swap_space, some GiB"),
    (lambda c: c.tenant_weights and c.queue_order != "fair", "tenant_weights need scheduling_policy fair"),
    (
        lambda c: (c.tensor_parallel_slices or c.tensor_parallel_size) % c.tensor_parallel_size,
        "tensor_parallel_slices must be a multiple of tensor_parallel_size",
    ),
    (
        lambda c: c.prefix_cache_dir is not None and (not c.enable_prefix_caching or c.record is not None),
        "prefix_cache_dir goes with enable_prefix_caching, and without record, whose replay lacks the files",
    ),
    (
        lambda c: c.prefix_cache_key_file is not None and c.prefix_cache_dir is None,
        "prefix_cache_key_file needs prefix_cache_dir, which it encrypts",
    ),
    (lambda c: c.lora_modules and not c.enable_lora, "lora_modules need enable_lora"),
    (
        lambda c: c.enable_lora and (c.tensor_parallel_slices or c.tensor_parallel_size) > 1,
        "enable_lora is not built with tensor_parallel_size or slices; leave one of them out",
    ),
)
