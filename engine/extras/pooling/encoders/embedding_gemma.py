"""EmbeddingGemma (Google DeepMind 2025): a Gemma 3 whose tokens see both sides; their mean passes two matrices."""

from collections.abc import Mapping
from typing import Any

from ....execution.models.gemma import Gemma3ForCausalLM
from ....execution.models.layers import Attention
from ....formats.json_file import positive_int
from ..heads import Dense, Head
from .encoder import Bidirectional


class Gemma3TextModel(Bidirectional, Gemma3ForCausalLM):
    """Gemma 3 without a head; without `use_bidirectional_attention` its tokens see those before them alone.

    `sliding_window` counts both sides of a token.
    """

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        is_encoder = bool(raw.get("use_bidirectional_attention"))
        pooling = raw.get("pooling_type") or ("MEAN" if is_encoder else "LAST")
        own = {"use_bidirectional_attention": False, "is_encoder_only": is_encoder, "pooling_type": pooling}
        if is_encoder:
            own["sliding_window"] = positive_int(raw, "sliding_window") // 2 + 1
        return super().normalize_config({**raw, **own})

    def _load_attention(self, index: int) -> Attention:
        after = Bidirectional if self.config.is_encoder else Gemma3ForCausalLM
        return after._load_attention(self, index)

    def _load_pooling_heads(self) -> None:
        width, heads = self.config.hidden_size, list[Head]()
        for name, num_outputs in (self.config.hf_config.get("dense_widths") or {}).items():  # a GGUF file's
            heads.append(Dense(self._take(name, num_outputs, width)))
            width = num_outputs
        self.embed_heads = tuple(heads)
