"""Nomic (Nussbaum et al. 2024): BERT with rotary positions and SwiGLU, without biases in its matrices."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ....execution.models.decoder import WeightNames
from ....execution.models.forward_inputs import Inputs
from ....execution.models.hybrid import check_values
from ....execution.models.layers import GATED_ACTIVATIONS, MLP, activation
from .bert import BertModel
from .encoder import Encoder

# Names in the hub's config.json, which transformers' own class has changed.
_OLD_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}


class NomicBertModel(BertModel):
    """BERT's embedding without positions; norms after both parts of a layer."""

    names = WeightNames(
        prefix="nomic_bert.", embed="embeddings.word_embeddings", norm="", layers="encoder.layers",
        attention_norm="norm1", attention="attn", o_proj="out_proj", mlp_norm="norm2",
    )  # fmt: skip
    ignored = ("pooler.dense.weight", "pooler.dense.bias", "inv_freq")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {_OLD_NAMES.get(name, name): value for name, value in raw.items()}
        check_values(
            fields, activation_function="swiglu", prenorm=False, rotary_emb_fraction=1, rotary_emb_interleaved=False
        )
        theta = {"rope_theta": fields.get("rotary_emb_base", 1000.0), **(fields.get("rope_parameters") or {})}
        fields = super().normalize_config({"max_position_embeddings": 2048, "hidden_act": "silu", **fields})
        no_biases = {"attention_bias": False, "mlp_bias": False}
        return {**fields, **no_biases, "partial_rotary_factor": 1.0, "rope_parameters": theta}

    def _load(self) -> None:
        Encoder._load(self)
        segments = (self.config.vocab_size // self.config.hf_config["num_words"], self.config.hidden_size)
        self._embed_segments = self._take(f"{self._prefix}embeddings.token_type_embeddings.weight", *segments)
        self._embed_norm = self._load_norm(f"{self._prefix}emb_ln")

    def _load_qkv(self, name: str) -> Any:
        hidden = self.config.hidden_size
        return self._linear([(f"{name}.Wqkv", 3 * hidden)], hidden, bias=False, rows=self._qkv_rows)

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        hidden, inner, name = self.config.hidden_size, self.config.intermediate_size, f"{self._layer_name(index)}.mlp"
        gate_up = self._linear([(f"{name}.fc12", inner), (f"{name}.fc11", inner)], hidden, bias=False, is_robust=True)
        down = self._linear([(f"{name}.fc2", hidden)], inner, bias=False, is_robust=True)
        return MLP(gate_up, activation(self.config.hidden_act, GATED_ACTIVATIONS), down)

    def _embed(self, inputs: Inputs) -> Tensor:
        num_words = self.config.hf_config["num_words"]
        x = self._look_up(inputs.token_ids % num_words)
        return self._embed_norm(x + self._embed_segments.index_select(0, inputs.token_ids // num_words))
