"""PoolerConfig: how states become embeddings or scores, where it is not as the model's files and its family say."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from ...errors import ConfigError

POOLING_TYPES = ("LAST", "CLS", "MEAN")

# Qwen3-Reranker's model card (Zhang et al. 2025), whose answer is "yes" or "no".
YES_NO_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n'
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
YES_NO_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True, kw_only=True)
class PoolerConfig:
    """Fields of --pooler-config; None: the model's files decide. Raises ConfigError."""

    pooling_type: str | None = None  # vLLM's names, LAST, CLS or MEAN
    normalize: bool | None = None
    use_activation: bool | None = None  # softmax or sigmoid of a classifier's logits
    classifier_from_token: tuple[str, ...] | None = None  # tokens whose logits are the labels' logits
    score_template: str | None = None  # text of a pair, with {query}, {document} and {instruction}

    def __post_init__(self) -> None:
        if self.pooling_type is not None and self.pooling_type not in POOLING_TYPES:
            raise ConfigError(
                f"pooler_config: pooling_type {self.pooling_type!r} is not known; known: {', '.join(POOLING_TYPES)}"
            )
        for name in ("normalize", "use_activation"):
            if getattr(self, name) not in (None, True, False):
                raise ConfigError(f"pooler_config: {name} must be true or false")
        tokens = self.classifier_from_token
        if tokens is not None and (len(tokens) < 2 or not all(isinstance(token, str) for token in tokens)):
            raise ConfigError('pooler_config: classifier_from_token must be two or more tokens, such as ["no", "yes"]')
        if self.score_template is not None and "{document}" not in self.score_template:
            raise ConfigError("pooler_config: score_template must have {query} and {document}")

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "PoolerConfig":
        """Build from the setting. Raises ConfigError."""
        known = [field.name for field in fields(cls)]
        values = {("pooling_type" if name == "seq_pooling_type" else name): value for name, value in given.items()}
        for name in values:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                raise ConfigError(f"pooler_config: {name!r} is not known; {f'did you mean {near[0]}?' if near else ''} "
                                  f"known: {', '.join(known)}")  # fmt: skip
        if isinstance(values.get("pooling_type"), str):
            values["pooling_type"] = values["pooling_type"].upper()
        if isinstance(values.get("classifier_from_token"), list):
            values["classifier_from_token"] = tuple(values["classifier_from_token"])
        return cls(**values)
