"""Settings: EngineConfig as the user gives it, ModelConfig as the model folder states it. Imports no torch."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigError

DEMO_MODEL = "splitfuse-demo-5m"
DEMO_FOLDER = Path(__file__).parent / "demo_model"

_CHOICES: dict[str, tuple[str, ...]] = {
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "load_format": ("auto", "safetensors", "dummy"),
    "batching_policy": ("splitfuse", "prefill_first", "decode_first", "static"),
    "scheduling_policy": ("fcfs", "priority", "fair"),
    "preemption_mode": ("auto", "recompute", "swap"),
}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything the engine can be told; names are the command line's flags. Raises ConfigError.

    None means "decide from the model and the machine". `model` None is the bundled demo model, else a folder or hub id.
    """

    model: str | None = None
    served_model_name: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    load_format: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    long_prefill_token_threshold: int = 0  # most tokens of one prompt in one step; 0 = the budget is the only limit
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    num_kv_blocks: int | None = None
    swap_space: float = 0.0  # GiB of host memory for blocks of requests that gave way
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    batching_policy: str = "splitfuse"
    scheduling_policy: str = "fcfs"
    # Of "fair": tokens of one tenant against another's, 1 if not named. May name keys, so it is not shown.
    tenant_weights: dict[str, float] | None = field(default=None, repr=False)
    preemption_mode: str = "auto"
    target_itl_ms: float | None = None  # longest gap between tokens to aim at; each step's budget follows from it
    max_queue_size: int = 1024  # requests waiting; one more is refused with a time to come back
    max_queue_seconds: float | None = None  # the same for the predicted time to a first token
    seed: int = 0
    num_threads: int | None = None  # CPU threads of the model; None = the cores this process may use
    log_steps: bool = False
    record: str | None = None  # file for every decision and arrival, for `splitfuse replay`
    chat_template: str | None = None  # a file, or the template itself, instead of the model's own
    speculative_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.model is not None and not self.model.strip():
            raise ConfigError("model is an empty string; name a folder or hub id, or leave it out for the demo model")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} {getattr(self, name)!r} is not one of {', '.join(choices)}")
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_queue_size"):
            _require(self, name, at_least=1)
        for name in ("max_model_len", "num_kv_blocks", "kv_cache_memory_bytes", "num_threads"):
            if getattr(self, name) is not None:
                # A prompt and an answer have a token each at least.
                _require(self, name, at_least=2 if name == "max_model_len" else 1)
        _require(self, "long_prefill_token_threshold", at_least=0)
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"gpu_memory_utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}"
            )
        for name in ("target_itl_ms", "max_queue_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be a number above 0, not {value!r}")
        if self.swap_space < 0:
            raise ConfigError(f"swap_space must be a number of GiB of at least 0, not {self.swap_space}")
        if self.preemption_mode == "swap" and not self.swap_space:
            raise ConfigError("preemption_mode swap needs room to swap to: set swap_space to some GiB")
        for tenant, weight in (self.tenant_weights or {}).items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
                raise ConfigError(f"tenant_weights: the weight of {tenant!r} must be a number above 0, not {weight!r}")
        if self.tenant_weights and self.scheduling_policy != "fair":
            raise ConfigError("tenant_weights say how tenants share; they need scheduling_policy fair")
        self._refuse_what_is_not_built()

    def _refuse_what_is_not_built(self) -> None:
        if self.speculative_config is not None:
            raise ConfigError("speculative_config: speculative decoding is not built yet; leave it out")
        if not self.enable_chunked_prefill:
            raise ConfigError("enable_chunked_prefill is always on here: chunks are what splitfuse is about")

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        if self.served_model_name:
            return self.served_model_name
        return DEMO_MODEL if self.model is None else self.model

    @property
    def is_demo(self) -> bool:
        """Whether the bundled demo model is served."""
        return self.model is None


def _require(config: EngineConfig, name: str, *, at_least: int) -> None:
    value = getattr(config, name)
    if type(value) is not int or value < at_least:
        raise ConfigError(f"{name} must be an integer of at least {at_least}, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary embedding: base theta, and how positions are stretched."""

    theta: float = 10000.0
    scaling: dict[str, Any] = field(default_factory=dict)  # {} or {"rope_type": "llama3" | "linear", ...}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of one decoder-only model, read from config.json (Hugging Face's names). Raises ConfigError."""

    architecture: str
    vocab_size: int  # width of the logits
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    hidden_act: str
    sliding_windows: tuple[int, ...]  # per layer, 0 = none
    dtype: str
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read config.json and, for the end tokens, generation_config.json."""
        raw = read_json(folder / "config.json")
        path = folder / "generation_config.json"
        return cls.from_dict(
            raw, generation=read_json(path) if path.exists() else {}, source=str(folder / "config.json")
        )

    @classmethod
    def from_dict(
        cls, raw: dict[str, Any], *, generation: dict[str, Any], source: str = "config.json"
    ) -> "ModelConfig":
        """`raw` as in config.json; both spellings of the rope settings are known (rope_theta, rope_parameters)."""
        try:
            return cls._from_dict(raw, generation=generation, source=source)
        except (KeyError, TypeError, ValueError, IndexError) as exc:
            raise ConfigError(
                f"{source}: a field is missing or of the wrong kind ({type(exc).__name__}: {exc})"
            ) from exc

    @classmethod
    def _from_dict(cls, raw: dict[str, Any], *, generation: dict[str, Any], source: str) -> "ModelConfig":
        get = _Reader(raw, source)
        architecture = str((raw.get("architectures") or ["(none named)"])[0])
        if raw.get("quantization_config"):
            raise ConfigError(f"{source}: quantized checkpoints are not supported yet; take the bfloat16 one")
        num_heads = get.int("num_attention_heads")
        hidden_size = get.int("hidden_size")
        num_layers = get.int("num_hidden_layers")
        eos = generation.get("eos_token_id", raw.get("eos_token_id"))
        config = cls(
            architecture=architecture,
            vocab_size=get.int("vocab_size"),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=get.int("num_key_value_heads", num_heads),
            head_dim=get.int("head_dim", hidden_size // num_heads),
            intermediate_size=get.int("intermediate_size"),
            max_position_embeddings=get.int("max_position_embeddings"),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope=_rope(raw),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            attention_bias=bool(raw.get("attention_bias", False)),
            mlp_bias=bool(raw.get("mlp_bias", False)),
            hidden_act=str(raw.get("hidden_act", "silu")),
            sliding_windows=_sliding_windows(raw, architecture, num_layers, source),
            dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
            eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
        )
        if config.head_dim % 2:
            raise ConfigError(f"{source}: head_dim {config.head_dim} is odd; rotary embedding turns pairs")
        if num_heads % config.num_kv_heads:
            raise ConfigError(
                f"{source}: num_attention_heads {num_heads} is not a multiple of "
                f"num_key_value_heads {config.num_kv_heads}"
            )
        return config

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of keys and values that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes


class _Reader:
    """Takes positive integers out of config.json, or says which one is missing or wrong."""

    def __init__(self, raw: dict[str, Any], source: str) -> None:
        self._raw = raw
        self._source = source

    def int(self, name: str, default: int | None = None) -> int:
        value = self._raw.get(name)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise ConfigError(f"{self._source}: {name} must be a positive integer, not {value!r}")
        return value


# What each kind of rope scaling must state.
_ROPE_NUMBERS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _rope(raw: dict[str, Any]) -> RopeConfig:
    parameters = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if kind not in _ROPE_NUMBERS:
        raise ConfigError(f"rope type {kind!r} is not known; known: {', '.join(_ROPE_NUMBERS)}")
    for name in _ROPE_NUMBERS[kind]:
        parameters[name] = float(parameters[name])
    parameters["rope_type"] = kind
    return RopeConfig(theta=theta, scaling={} if kind == "default" else parameters)


def _sliding_windows(raw: dict[str, Any], architecture: str, num_layers: int, source: str) -> tuple[int, ...]:
    """The window of each layer, 0 = none. The same key means something else in each family, and nothing in Llama's."""
    window = raw.get("sliding_window")
    is_qwen = architecture.startswith("Qwen")
    if not window or not (architecture.startswith("Mistral") or (is_qwen and raw.get("use_sliding_window"))):
        return (0,) * num_layers
    if kinds := raw.get("layer_types"):
        if len(kinds) != num_layers:
            raise ConfigError(f"{source}: layer_types has {len(kinds)} entries for {num_layers} layers")
        return tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds)
    # Qwen's first max_window_layers layers see everything; 28 where it is not said.
    num_full = int(raw.get("max_window_layers", 28)) if is_qwen else 0
    return tuple(0 if layer < num_full else int(window) for layer in range(num_layers))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of the model folder. Raises ConfigError naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ConfigError(f"{path} is missing; is this a Hugging Face model folder?") from exc
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} cannot be read as JSON ({exc}); fetch the file again") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object; fetch the file again")
    return value


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold this many tokens."""
    return math.ceil(num_tokens / block_size)
