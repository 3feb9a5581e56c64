"""ModelConfig: the shape of a model, from config.json as its family reads it. Imports no torch until it reads one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config import positive_int, read_json
from .errors import ConfigError
from .models.registry import model_class
from .rope import RopeConfig


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of one decoder-only model, in Hugging Face's names for Llama. Raises ConfigError."""

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
    sliding_windows: tuple[int, ...]  # per layer, 0 = none
    dtype: str
    eos_token_ids: tuple[int, ...]
    words: Mapping[str, Any] = field(repr=False)  # all of config.json, as its family translated it

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
        """`raw` as in config.json of any known family."""
        try:
            family = model_class(str((raw.get("architectures") or ["(none named)"])[0]))
            if raw.get("quantization_config"):
                raise ConfigError("quantized checkpoints are not supported yet; take the bfloat16 one")
            return cls._from_words(family.config_words(raw), generation)
        except ConfigError as exc:
            raise ConfigError(f"{source}: {exc}") from exc
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as exc:
            raise ConfigError(
                f"{source}: a field is missing or of the wrong kind ({type(exc).__name__}: {exc})"
            ) from exc

    @classmethod
    def _from_words(cls, words: Mapping[str, Any], generation: Mapping[str, Any]) -> "ModelConfig":
        num_heads = positive_int(words, "num_attention_heads")
        num_kv_heads = positive_int(words, "num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
            )
        hidden_size = positive_int(words, "hidden_size")
        head_dim = positive_int(words, "head_dim", hidden_size // num_heads)
        layer_types = _layer_types(words)
        ropes = {kind: RopeConfig.of_layers(words, layer_type=kind, head_dim=head_dim) for kind in set(layer_types)}
        window = positive_int(words, "sliding_window") if words.get("sliding_window") else 0
        eos = generation.get("eos_token_id", words.get("eos_token_id"))
        return cls(
            architecture=words["architectures"][0],
            vocab_size=positive_int(words, "vocab_size"),
            hidden_size=hidden_size,
            num_layers=len(layer_types),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=positive_int(words, "intermediate_size"),
            max_position_embeddings=positive_int(words, "max_position_embeddings"),
            norm_eps=float(words.get("rms_norm_eps", 1e-6)),
            ropes=tuple(ropes[kind] for kind in layer_types),
            tie_word_embeddings=bool(words.get("tie_word_embeddings", False)),
            attention_bias=bool(words.get("attention_bias", False)),
            mlp_bias=bool(words.get("mlp_bias", False)),
            hidden_act=str(words.get("hidden_act", "silu")),
            sliding_windows=tuple(window if kind == "sliding_attention" else 0 for kind in layer_types),
            dtype=str(words.get("dtype") or words.get("torch_dtype") or "float32"),
            eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
            words=words,
        )

    @property
    def max_len_limit(self) -> int:
        """Positions that can be served: those the model was made for, or as far as YaRN stretches them."""
        yarns = [rope.scaling for rope in self.ropes if rope.scaling.get("rope_type") == "yarn"]
        stretched = (int(yarn["factor"] * yarn["original_max_position_embeddings"]) for yarn in yarns)
        return max([self.max_position_embeddings, *stretched])

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of keys and values that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes


def _layer_types(words: Mapping[str, Any]) -> list[str]:
    """What each layer sees. Without layer_types all layers see the window, if there is one."""
    num_layers = positive_int(words, "num_hidden_layers")
    kinds = words.get("layer_types")
    if not kinds:
        return ["sliding_attention" if words.get("sliding_window") else "full_attention"] * num_layers
    if len(kinds) != num_layers:
        raise ConfigError(f"layer_types has {len(kinds)} entries for {num_layers} layers")
    if unknown := set(kinds) - {"sliding_attention", "full_attention"}:
        raise ConfigError(f"layer_types: {unknown.pop()!r} is not known; known: full_attention, sliding_attention")
    return list(kinds)
