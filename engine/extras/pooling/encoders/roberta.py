"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2019): BERT whose positions begin at the table's third row."""

from ....execution.models.checkpoint import positive_int
from ..families import num_labels_of
from ..heads import Dense
from .bert import BertModel


class RobertaModel(BertModel):
    """BERT with other words and positions."""

    names = BertModel.names._replace(prefix="roberta.")
    first_position = 2

    @classmethod
    def normalize_config(cls, raw):  # type: ignore[no-untyped-def]
        return super().normalize_config({**raw, "type_vocab_size": positive_int(raw, "type_vocab_size", 1)})


class RobertaForSequenceClassification(RobertaModel):
    """RoBERTa with a classifier of two matrices on the first token."""

    ignored = ("embeddings.position_ids",)

    def _load_head(self, *table: int) -> None:
        hidden, num_labels = self.config.hidden_size, num_labels_of(self.config)
        dense, out = "classifier.dense", "classifier.out_proj"
        self.pooling_heads = [
            Dense(self._take(f"{dense}.weight", hidden, hidden), self._take(f"{dense}.bias", hidden), activation="tanh"),
            Dense(self._take(f"{out}.weight", num_labels, hidden), self._take(f"{out}.bias", num_labels)),
        ]


class XLMRobertaModel(RobertaModel):
    """RoBERTa of many languages."""


class XLMRobertaForSequenceClassification(RobertaForSequenceClassification):
    """RoBERTa of many languages with a classifier."""
