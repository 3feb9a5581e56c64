"""Nomic (Nussbaum et al. 2024): BERT with rotary positions and SwiGLU, without biases in its matrices."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ....execution.models.decoder import Decoder, Names
from ....execution.models.forward_inputs import Inputs
from .bert import BertModel
from .encoder import Encoder


class NomicBertModel(BertModel):
    """BERT's embedding without positions over Llama's parts, normalised after each."""

    names = Names(
        prefix="nomic_bert.", embed="embeddings.word_embeddings", norm="", attention_norm="post_attention_layernorm",
        mlp_norm="post_mlp_layernorm",
    )  # fmt: skip
    mlp_names = None
    ignored = ("embeddings.position_ids", "rotary_emb.inv_freq")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        if "n_embd" in raw:  # the hub's first form, with remote code
            raise ValueError("this is the old form of Nomic's files; take a revision with hidden_size in config.json")
        fields = {"hidden_act": "silu", "max_position_embeddings": 2048, "vocab_size": 30528, **raw}
        rope = {"rope_theta": 1000.0, **(fields.get("rope_parameters") or {})}
        fields = super().normalize_config(fields)
        return {
            **fields, "attention_bias": False, "mlp_bias": False, "partial_rotary_factor": 1.0, "rope_parameters": rope,
        }  # fmt: skip

    def _load(self) -> None:
        Encoder._load(self)
        config, embeddings = self.config, f"{self._prefix}embeddings"
        num_segments = config.vocab_size // config.hf_config["num_words"]
        self._embed_segments = self._take(f"{embeddings}.token_type_embeddings.weight", num_segments, config.hidden_size)
        self._embed_norm = self._load_norm(f"{embeddings}.LayerNorm")

    def _load_qkv(self, name: str) -> Any:
        return Decoder._load_qkv(self, name)

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        return Decoder._load_mlp(self, index)

    def _embed(self, inputs: Inputs) -> Tensor:
        num_words = self.config.hf_config["num_words"]
        x = self._look_up(inputs.token_ids % num_words)
        return self._embed_norm(x + self._embed_segments.index_select(0, inputs.token_ids // num_words))
