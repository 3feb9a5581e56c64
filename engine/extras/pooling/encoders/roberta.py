"""RoBERTa (Liu et al. 2019), XLM-RoBERTa (Conneau et al. 2019): BERT with positions after that of the padding token."""

from collections.abc import Mapping
from typing import Any

from ..families import num_labels_of
from .bert import BertModel


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
