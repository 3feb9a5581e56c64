"""ModelConfig: the shape of a model, from config.json as its family normalizes it. `registry` reads the file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...formats.json_file import positive_int
from .layer_states import LayerState, PagedKV, recurrent_parts
from .rope_config import RopeConfig

if TYPE_CHECKING:
    from ...formats.checkpoint_format import CheckpointFormat

_MAX_WINDOW = 2**30  # kernels count positions in int32
_MAX_LAYERS = 2**12
_MAX_HEAD_DIM = 2**14  # tables of rope take memory for each element before a weight's shape is checked


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of one decoder-only model, with Hugging Face's field names for Llama. Raises ConfigError."""

    architecture: str
    vocab_size: int  # width of the logits
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    norm_eps: float
    ropes: tuple[RopeConfig, ...]  # per layer
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    hidden_act: str
    quantization: "CheckpointFormat | None"  # format of quantized weights in the files
    sliding_windows: tuple[int, ...]  # per layer, 0 = none
    dtype: str
    eos_token_ids: tuple[int, ...]
    description: str  # the model's description in its files, for people; may be empty
    hf_config: Mapping[str, Any] = field(repr=False)  # all of config.json, as its family normalized it
    layer_states: tuple[LayerState, ...]  # per layer
    impl: str = "native"  # or transformers, whose modules then run
    is_encoder: bool = False  # every token sees its whole row, in one step; keys and values live for one layer

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], generation: Mapping[str, Any]) -> "ModelConfig":
        """Build the config from config.json, normalized by its family, and generation_config.json."""
        layer_types = _layer_types(fields)
        num_heads = positive_int(fields, "num_attention_heads")
        num_kv_heads = positive_int(fields, "num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
            )
        hidden_size = positive_int(fields, "hidden_size")
        head_dim = positive_int(fields, "head_dim", hidden_size // num_heads)
        if head_dim > _MAX_HEAD_DIM:
            raise ConfigError(f"head_dim {head_dim} is more than {_MAX_HEAD_DIM}")
        ropes = {kind: RopeConfig.of_layers(fields, layer_type=kind, head_dim=head_dim) for kind in set(layer_types)}
        window = min(positive_int(fields, "sliding_window"), _MAX_WINDOW) if fields.get("sliding_window") else 0
        quantization = None
        if declared := fields.get("quantization_config"):
            from ...formats.quantization.registry import checkpoint_format  # here: plain weights need no format

            quantization = checkpoint_format(declared)
        return cls(
            architecture=fields["architectures"][0],
            vocab_size=positive_int(fields, "vocab_size"),
            hidden_size=hidden_size,
            num_layers=len(layer_types),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=positive_int(fields, "intermediate_size"),
            max_position_embeddings=positive_int(fields, "max_position_embeddings"),
            norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            ropes=tuple(ropes[kind] for kind in layer_types),
            tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
            attention_bias=bool(fields.get("attention_bias", False)),
            mlp_bias=bool(fields.get("mlp_bias", False)),
            hidden_act=str(fields.get("hidden_act", "silu")),
            quantization=quantization,
            sliding_windows=tuple(window if kind == "sliding_attention" else 0 for kind in layer_types),
            dtype=str(fields.get("dtype") or fields.get("torch_dtype") or "float32"),
            eos_token_ids=end_token_ids(fields.get("eos_token_id"), generation.get("eos_token_id")),
            description=str(fields.get("description", "")),
            hf_config=fields,
            layer_states=(PagedKV(num_kv_heads, head_dim),) * len(layer_types),
            is_encoder=bool(fields.get("is_encoder_only", False)),
        )

    @property
    def kept_states(self) -> tuple[LayerState, ...]:
        """What the cache has memory for: an encoder's layers take turns in the memory of one."""
        return self.layer_states[:1] if self.is_encoder else self.layer_states

    @property
    def is_recurrent(self) -> bool:
        """True if some layers have a recurrent state."""
        return bool(recurrent_parts(self.layer_states))

    def with_kv_heads(self, num_kv_heads: int) -> "ModelConfig":
        """Return the config of a share of the model, or of all shares together, with that many KV heads per layer."""
        if num_kv_heads == self.num_kv_heads:  # then layers may differ
            return self
        states = tuple(
            s._replace(num_kv_heads=num_kv_heads) if isinstance(s, PagedKV) else s for s in self.layer_states
        )
        return replace(self, num_kv_heads=num_kv_heads, layer_states=states)

    @property
    def max_len_limit(self) -> int:
        """Largest number of positions that can be served: the trained ones, or more if YaRN stretches them."""
        yarns = [rope.scaling for rope in self.ropes if rope.scaling.get("rope_type") == "yarn"]
        stretched = (int(yarn["factor"] * yarn["original_max_position_embeddings"]) for yarn in yarns)
        return max([self.max_position_embeddings, *stretched])


def end_token_ids(*values: Any) -> tuple[int, ...]:
    """Return the end tokens that any file names: each value is an id, a list of ids, or None."""
    lists = [value if isinstance(value, list) else [] if value is None else [value] for value in values]
    return tuple(dict.fromkeys(int(token_id) for ids in lists for token_id in ids))


def _layer_types(fields: Mapping[str, Any]) -> list[str]:
    """Return each layer's kind of attention, by layer_types or by sliding_window_pattern: every nth one is full.

    Without either every layer has the window, if there is one.
    """
    num_layers = positive_int(fields, "num_hidden_layers")
    if num_layers > _MAX_LAYERS:
        raise ConfigError(f"num_hidden_layers {num_layers} is more than {_MAX_LAYERS}")
    kinds = fields.get("layer_types")
    if not kinds and fields.get("sliding_window_pattern"):
        every = positive_int(fields, "sliding_window_pattern")
        return ["sliding_attention" if layer % every else "full_attention" for layer in range(1, num_layers + 1)]
    if not kinds:
        return ["sliding_attention" if fields.get("sliding_window") else "full_attention"] * num_layers
    if len(kinds) != num_layers:
        raise ConfigError(f"layer_types has {len(kinds)} entries for {num_layers} layers")
    if unknown := set(kinds) - {"sliding_attention", "full_attention"}:
        raise ConfigError(f"layer_types: {unknown.pop()!r} is not known; known: full_attention, sliding_attention")
    return list(kinds)
