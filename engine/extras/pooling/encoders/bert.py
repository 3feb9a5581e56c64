"""BERT (Devlin et al. 2018): learned positions and segments, GELU.

A token id carries its segment: segment · vocab_size + token. So pairs need no further array in a batch.
RoBERTa (Liu et al. 2019), XLM-RoBERTa (Conneau et al. 2019): BERT with positions after that of the padding token.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from ....execution.models.decoder import WeightNames
from ....execution.models.forward_inputs import Inputs
from ....execution.models.hybrid import check_values
from ....formats.json_file import positive_int
from ..families import num_labels_of
from .encoder import Encoder


class BertModel(Encoder):
    """Encoder whose embedding is a sum of word, position and segment, normalised."""

    names = WeightNames(
        prefix="bert.", embed="embeddings.word_embeddings", norm="", layers="encoder.layer",
        attention_norm="attention.output.LayerNorm", attention="attention", o_proj="output.dense",
        mlp_norm="output.LayerNorm",
    )  # fmt: skip
    mlp_names: ClassVar[tuple[str, str] | None] = ("intermediate.dense", "output.dense")
    ignored: ClassVar[tuple[str, ...]] = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")

    @classmethod
    def first_position(cls, raw: Mapping[str, Any]) -> int:
        """Return the number of rows at the beginning of the position table that no token uses."""
        return 0

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        check_values(raw, is_decoder=False, position_embedding_type=("absolute", None))
        return super().normalize_config(
            {
                "type_vocab_size": 2,
                "hidden_act": "gelu",
                **raw,
                "rms_norm_eps": raw.get("layer_norm_eps", 1e-12),
                "max_position_embeddings": positive_int(raw, "max_position_embeddings", 512) - cls.first_position(raw),
                "first_position": cls.first_position(raw),
                "attention_bias": True,
                "mlp_bias": True,
                "partial_rotary_factor": 0.0,
                "num_words": raw["vocab_size"],
                "vocab_size": raw["vocab_size"] * positive_int(raw, "type_vocab_size", 2),
            }
        )

    def _load_embedding(self, name: str, *shape: int) -> Any:
        """Return the words' table; the segments' table is another."""
        return super()._load_embedding(name, self.config.hf_config["num_words"], shape[1])

    def _load(self) -> None:
        super()._load()
        config, embeddings = self.config, f"{self._prefix}embeddings"
        first = config.hf_config["first_position"]
        num_rows = config.max_position_embeddings + first
        table = self._take(f"{embeddings}.position_embeddings.weight", num_rows, config.hidden_size)
        self._embed_positions = table[first:]
        segments = (config.vocab_size // config.hf_config["num_words"], config.hidden_size)
        self._embed_segments = self._take(f"{embeddings}.token_type_embeddings.weight", *segments)
        self._embed_norm = self._load_norm(f"{embeddings}.LayerNorm")

    def _load_qkv(self, name: str) -> Any:
        hidden = self.config.hidden_size
        parts = [(f"{name}.self.{part}", hidden) for part in ("query", "key", "value")]
        return self._linear(parts, hidden, bias=True, rows=self._qkv_rows)

    def _embed(self, inputs: Inputs) -> Tensor:
        num_words = self.config.hf_config["num_words"]
        x = self._look_up(inputs.token_ids % num_words)
        x = x + self._embed_segments.index_select(0, inputs.token_ids // num_words)
        return self._embed_norm(x + self._embed_positions.index_select(0, inputs.positions))


class BertForSequenceClassification(BertModel):
    """BERT with its pooler and a classifier on the first token."""

    ignored = ("embeddings.position_ids",)

    def _load_pooling_heads(self) -> None:
        self.pooling_heads = [
            self._load_dense(f"{self._prefix}pooler.dense", self.config.hidden_size, activation="tanh"),
            self._load_dense("classifier", num_labels_of(self.config)),
        ]


class RobertaModel(BertModel):
    """BERT with other words and positions."""

    names = BertModel.names._replace(prefix="roberta.")

    @classmethod
    def first_position(cls, raw: Mapping[str, Any]) -> int:
        pad = raw.get("pad_token_id")
        return 2 if pad is None else int(pad) + 1


class RobertaForSequenceClassification(RobertaModel):
    """RoBERTa with a classifier of two matrices on the first token."""

    ignored = ("embeddings.position_ids",)

    def _load_pooling_heads(self) -> None:
        self.pooling_heads = [
            self._load_dense("classifier.dense", self.config.hidden_size, activation="tanh"),
            self._load_dense("classifier.out_proj", num_labels_of(self.config)),
        ]


class XLMRobertaModel(RobertaModel):
    """RoBERTa of many languages."""


class XLMRobertaForSequenceClassification(RobertaForSequenceClassification):
    """RoBERTa of many languages with a classifier."""
