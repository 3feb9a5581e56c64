"""Families that pool: encoders, and decoders without the head that makes logits of tokens.

`XForSequenceClassification` is the decoder `XForCausalLM` with a score head, `XModel` the decoder alone. An encoder has
a file of its own.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from ...execution.models.config import ModelConfig
from ...execution.models.registry import MODELS, model_class
from .heads import Dense, Head


class Encoder(NamedTuple):
    """Module of an encoder's classes, and its row of the table in server/docs/embeddings.md."""

    module: str
    name: str
    example: str  # an id on the hub


ENCODERS = {
    "BertModel": Encoder(".bert", "BERT", "BAAI/bge-base-en-v1.5"),
    "BertForSequenceClassification": Encoder(".bert", "BERT, scores", "cross-encoder/ms-marco-MiniLM-L6-v2"),
    "RobertaModel": Encoder(".bert", "RoBERTa", "sentence-transformers/all-distilroberta-v1"),
    "RobertaForSequenceClassification": Encoder(".bert", "RoBERTa, scores", "cross-encoder/stsb-roberta-base"),
    "XLMRobertaModel": Encoder(".bert", "XLM-RoBERTa", "BAAI/bge-m3"),
    "XLMRobertaForSequenceClassification": Encoder(".bert", "XLM-RoBERTa, scores", "BAAI/bge-reranker-v2-m3"),
    "ModernBertModel": Encoder(".modernbert", "ModernBERT", "Alibaba-NLP/gte-modernbert-base"),
    "ModernBertForSequenceClassification": Encoder(
        ".modernbert", "ModernBERT, scores", "Alibaba-NLP/gte-reranker-modernbert-base"
    ),
    "Gemma3TextModel": Encoder(".embedding_gemma", "EmbeddingGemma", "google/embeddinggemma-300m"),
    "NomicBertModel": Encoder(".nomic_bert", "Nomic", "nomic-ai/nomic-embed-text-v1.5"),
}
_SCORES, _BASE = "ForSequenceClassification", "Model"


@cache
def pooling_class(architecture: str) -> "type[Any] | None":
    """Return the class for an architecture that only pools; None for one that is not known or that generates."""
    if architecture in ENCODERS:
        module = import_module(f".encoders{ENCODERS[architecture].module}", __package__)
        found: type[Any] = getattr(module, architecture)
        return found
    for ending, mixin in ((_SCORES, ScoreHead), (_BASE, NoHead)):
        stem = architecture.removesuffix("TextModel").removesuffix(ending)
        base = f"{stem}ForCausalLM"
        if architecture.endswith(ending) and base in MODELS:
            return type(architecture, (mixin, model_class(base)), {})
    return None


def num_labels_of(config: ModelConfig) -> int:
    """Return the number of a classifier's labels, by transformers' default 2."""
    fields = config.hf_config
    return len(fields.get("id2label") or ()) or int(fields.get("num_labels") or 2)


class NoHead:
    """Model without the head that makes logits of tokens. `pooling_heads`: a classifier's."""

    generates: ClassVar[bool] = False
    pooling_heads: list[Head] | None = None
    config: ModelConfig
    _take: Any

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return config.json with tied embeddings, so that no head's weights are required."""
        fields: dict[str, Any] = super().normalize_config(raw)  # type: ignore[misc]
        return {**fields, "tie_word_embeddings": True}

    def logits(self, hidden: Any) -> Any:
        """Return the states: nothing samples, but a GPU's rehearsal of its kernels does."""
        return hidden

    def _pack_head(self, weight: Any) -> None:
        self._load_pooling_heads()

    def _load_pooling_heads(self) -> None:
        """Load the classifier's matrices, if the class has some."""

    def _load_dense(self, name: str, num_outputs: int, *, activation: str = "identity", bias: bool = True) -> Dense:
        weight = self._take(f"{name}.weight", num_outputs, self.config.hidden_size)
        return Dense(weight, self._take(f"{name}.bias", num_outputs) if bias else None, activation=activation)


class ScoreHead(NoHead):
    """Decoder with a head that scores the last token's state."""

    def _load_pooling_heads(self) -> None:
        self.pooling_heads = [self._load_dense("score", num_labels_of(self.config), bias=False)]
