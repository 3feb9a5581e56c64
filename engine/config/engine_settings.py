"""EngineSettings: the user's wishes for the engine, without those of extensions. Imports no torch."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConfigError
from .named_models import DEMO, DEMO_MODEL, SMOLLM2
from .setting import check, setting

_ENDING = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)


def file_names(model: str) -> list[str]:
    """Return the name to show, then others: what was typed, and a file's name with and without its ending.

    Only a local file or folder is shown by its name; a hub id or a short name stays as it is.
    """
    path = Path(model).expanduser()
    typed = path.name or path.resolve().name  # "." has no name of its own
    file = typed.rpartition(":")[2] if _ENDING.search(typed) else typed
    stem = _ENDING.sub("", file)
    is_local = path.exists() or (stem != file == typed)
    return [stem if is_local else model, model, file, stem]


S = TypeVar("S", bound="EngineSettings")

# Measured with a 221 M model, two cores, eight streams beside 1500-token prompts: P99 gap 327 -> 186 ms, the prompts'
# first tokens after 1.02 s instead of 0.93, an equal rate of short prompts. With 192: 140 ms and 1.02 s.
_CPU_CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of the engine; names are the command line's flags. Raises ConfigError.

    None means "decide from the model and the machine". An extension declares its settings in a class derived from this
    one; EngineConfig joins all of them.
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
        help="int8: round inputs of packed weights (GPU: int8, FP8 experts); auto: MLPs' on CPUs with VNNI",
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
        None,
        repr=False,
        decides=True,
        by_tenant=True,
        help='weights for fair, as JSON: {"USER or API key": 2}; 1 for all others',
    )
    max_seqs_per_key: int | None = setting(
        None, at_least=1, decides=True, help="most running sequences of one key, or user; further ones wait"
    )
    preemption_mode: str = setting(
        "auto", choices=("auto", "recompute", "swap"), decides=True, help="how a request is preempted"
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
        None, at_least=1, help="CPU threads of the model; nothing = the cores, or the CPU quota, of this process"
    )
    log_steps: bool = setting(False, help="print one line per step")
    tokenizer: str | None = setting(
        None,
        help="model whose tokenizer and chat template are read instead of the model's own: FOLDER, GGUF file, hub id",
    )
    chat_template: str | None = setting(
        None, help="file with a chat template, or the template itself, instead of the model's own"
    )
    escape_special_tokens: bool = setting(
        False, help="special tokens in messages of users and tools are ordinary text for the model"
    )
    generation_config: str = setting(
        "auto", help="sampling fields that a request leaves out: auto = the model's, vllm = neutral, or a FOLDER's"
    )
    override_generation_config: dict[str, Any] | None = setting(
        None, help='single values of --generation-config, as JSON: {"temperature": 0.5}'
    )

    def __post_init__(self) -> None:
        check(self)
        for tenant, weight in (self.tenant_weights or {}).items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
                raise ConfigError(f"tenant_weights: the weight of {tenant!r} must be a number above 0, not {weight!r}")
        for is_refused, message in _REFUSED:
            if is_refused(self):
                raise ConfigError(message)
        if self.model_name.endswith("*"):
            raise ConfigError(f"served_model_name: the first name cannot end in *, as {self.model_name!r} does")

    @property
    def queue_order(self) -> str:
        """Scheduling policy, also where it is "auto"."""
        return "fcfs" if self.scheduling_policy == "auto" else self.scheduling_policy

    def section(self, kind: type[S]) -> S:
        """These settings as an extension's class of settings."""
        assert isinstance(self, kind)
        return self

    def values_for_streams(self, device: str) -> dict[str, Any]:
        """Return the settings that streaming decides where they are open: steps beside streams are short."""
        if self.long_prefill_token_threshold is not None or self.batching_policy != "splitfuse":
            return {}
        return {"long_prefill_token_threshold": _CPU_CHUNK if device == "cpu" else None}

    @property
    def max_drafts(self) -> int:
        """Most tokens of a draft; 0 if none are drafted."""
        return 0

    @property
    def draft_model(self) -> str | None:
        """Folder or hub id of the model that drafts, whose cache has as many blocks as the model's."""
        return None

    @property
    def model_name(self) -> str:
        """Name under which the model is served, the first of several."""
        return self.model_names[0]

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """All names of the model; a name that ends in * stands for every name with that beginning."""
        names = tuple(name.strip() for name in (self.served_model_name or "").split(",") if name.strip())
        return names or (DEMO_MODEL if self.is_demo else file_names(str(self.model))[0],)

    @property
    def listed_model_names(self) -> tuple[str, ...]:
        """Names of the model without a *."""
        return tuple(name for name in self.model_names if not name.endswith("*"))

    def serves(self, name: str) -> bool:
        """True if the model is served under this name, or its file has it: as a path, with or without its ending."""
        return _spelt(name) in self._spellings or any(
            name.startswith(known[:-1]) for known in self.model_names if known.endswith("*")
        )

    @cached_property
    def _spellings(self) -> frozenset[str]:
        return frozenset(map(_spelt, (*self.listed_model_names, *file_names(self.model or DEMO))))

    @property
    def is_demo(self) -> bool:
        """True if the bundled demo model is served."""
        return self.model in (None, DEMO)


# Combinations that cannot work or are not built, with the messages. The first condition that holds raises ConfigError.
_REFUSED: tuple[tuple[Callable[[EngineSettings], object], str], ...] = (
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
)


def _spelt(name: str) -> str:
    """Return the spelling by which names are compared: Ollama's clients write a tag behind a colon."""
    return name.removesuffix(":latest").replace(":", "-").lower()
