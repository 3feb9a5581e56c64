"""Pooler: what one model makes of prompts: embeddings, or scores and classes; and how it writes prompts."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...checks import check_text, check_token_ids
from ...config import EngineConfig, ResolvedConfig
from ...core.sampling_params import SamplingParams
from ...errors import ConfigError, ContextLengthError, InvalidRequestError
from ...execution.runner.model_runner import ModelRunner
from ...language.text.tokenizer import Tokenizer
from ...serving.engine_part import EnginePart
from ...serving.input_processor import check_chars
from . import PoolingSettings
from .heads import Head, chain, normalized, sigmoid, softmax
from .model_files import ModelFiles, read_model_files
from .params import Pair, PoolingParams
from .task import Array, PoolingTask

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


Text = str | Sequence[int]


@dataclass(frozen=True)
class PooledPrompt:
    """Prompt as token ids, with the task that receives its result."""

    token_ids: list[int]
    task: PoolingTask
    params: SamplingParams
    num_numbers: int  # of the result, at most


class Pooler(EnginePart):
    """Pooling of one loaded model. Prompts are read in any thread."""

    def __init__(self, config: EngineConfig, folder: Path, runner: ModelRunner, tokenizer: Tokenizer | None) -> None:
        """Read the model's files. Raises ConfigError."""
        model, loaded = runner.model, runner.loaded
        settings = PoolerConfig.from_dict(config.section(PoolingSettings).pooler_config or {})
        self.files = files = read_model_files(folder) if folder.is_dir() else ModelFiles()
        self._tokenizer = tokenizer
        self._model_config = model_config = loaded.model_config
        self.generates = getattr(model, "generates", True)
        is_encoder = model_config.is_encoder
        default: str = getattr(model, "pooling_type", "LAST")
        self.pooling_type = settings.pooling_type or files.pooling_type or default
        self._normalize = settings.normalize if settings.normalize is not None else files.normalize is not False
        self._use_activation = settings.use_activation is not False
        self._embed_head: Head = chain([*getattr(model, "embed_heads", ()), *files.dense])
        self._class_head = self._classifier(runner, settings)
        self.score_template = settings.score_template
        if settings.classifier_from_token and not self.score_template:
            self.score_template = YES_NO_TEMPLATE
        longest = loaded.max_model_len
        if files.max_seq_length and config.max_model_len is None:
            longest = min(longest, files.max_seq_length)
        self._too_long_hint = "--max-model-len"
        self._budget = budget = config.max_num_batched_tokens
        if is_encoder and budget is not None and budget < longest:
            longest, self._too_long_hint = budget, "--max-num-batched-tokens, because an encoder takes it in one step"
        self.max_input_tokens = longest
        self._prefers_identity = _is_identity(model_config.hf_config)

    @property
    def classifies(self) -> bool:
        """True if the model has labels: then it scores pairs, else it embeds texts."""
        return self._class_head is not None

    @property
    def labels(self) -> list[str]:
        """Names of the labels, by index."""
        names = self._model_config.hf_config.get("id2label") or {}
        return [str(names[key]) for key in sorted(names, key=int)]

    @property
    def embedding_size(self) -> int:
        """Number of dimensions of a whole embedding."""
        return len(self._embed_head(np.zeros(self._model_config.hidden_size, dtype=np.float32)))

    # Prompts.

    def embedding_prompts(self, inputs: Sequence[Text], params: PoolingParams) -> list[PooledPrompt]:
        """Tokenize texts to be embedded. Raises InvalidRequestError. Blocks, so not for an event loop."""
        self._need(classifies=False)
        size = self.embedding_size
        if params.dimensions is not None and params.dimensions > size:
            raise InvalidRequestError(
                f"dimensions {params.dimensions} is more than the {size} of this model's embeddings; ask for fewer",
                param="dimensions",
            )
        rows = self._encoded(inputs, params, prefix=self._prefix(params.prompt_name))
        finish = partial(self._embedding, params=params)
        return [self._prompt(row, params, finish) for row in rows]

    def state_prompts(self, inputs: Sequence[Text], params: PoolingParams) -> list[PooledPrompt]:
        """Tokenize texts for the normalised state of every token."""
        rows = self._encoded(inputs, params)
        finish: Head = normalized if self._normalizes(params) else np.asarray
        return [self._prompt(row, params, finish, pooling_type="ALL") for row in rows]

    def class_prompts(self, inputs: "Sequence[Text | Pair]", params: PoolingParams) -> list[PooledPrompt]:
        """Tokenize texts or pairs whose labels are wanted."""
        self._need(classifies=True)
        finish = partial(self._classes, params=params)
        return [self._prompt(row, params, finish) for row in self._encoded(inputs, params)]

    def score_prompts(
        self, pairs: Sequence[Pair], params: PoolingParams, *, instruction: str | None = None
    ) -> list[PooledPrompt]:
        """Tokenize pairs for a model that scores them."""
        self._need(classifies=True)
        finish = partial(self._score, params=params)
        if self.score_template is None:
            return [self._prompt(row, params, finish) for row in self._encoded(pairs, params)]
        texts = [self._templated(pair, instruction or YES_NO_INSTRUCTION) for pair in pairs]
        return [self._prompt(row, params, finish) for row in self._encoded(texts, params)]

    def test_params(self, params: SamplingParams) -> SamplingParams:
        """Like EnginePart."""
        return params if self.generates else self._prompt([], PoolingParams(), np.asarray).params

    def config(self, config: ResolvedConfig) -> ResolvedConfig:
        """Return the settings for the model: an encoder's row is computed whole, and nothing of it is kept."""
        if not self._model_config.is_encoder:
            return config
        budget = self._budget or max(config.max_num_batched_tokens, self.max_input_tokens)
        return replace(
            config, max_num_batched_tokens=budget, batching_policy="prefill_first", enable_prefix_caching=False
        )

    def _prompt(
        self, token_ids: list[int], params: PoolingParams, finish: Head, *, pooling_type: str | None = None
    ) -> PooledPrompt:
        task = PoolingTask(pooling_type or self.pooling_type, finish)
        salt = uuid.uuid4().hex if task.needs_all else ""  # no cached prefix may stand in for its tokens
        num_rows = len(token_ids) if pooling_type == "ALL" else 1
        num_numbers = num_rows * (params.dimensions or self._model_config.hidden_size)
        return PooledPrompt(token_ids, task, params.sampling_params(salt=salt, pooling=task), num_numbers)

    def _need(self, *, classifies: bool) -> None:
        if self.classifies and not classifies:
            raise InvalidRequestError("this model scores and has no embeddings; POST /score, /rerank or /classify")
        if classifies and not self.classifies:
            raise InvalidRequestError("this model has embeddings and no labels; POST /v1/embeddings, /score or /rerank")

    def _prefix(self, name: str | None) -> str:
        if name is None:
            return self.files.default_prompt
        if name not in self.files.prompts:
            known = ", ".join(sorted(self.files.prompts)) or "none"
            raise InvalidRequestError(
                f"prompt_name {name!r} is not known to this model; known: {known}", param="prompt_name"
            )
        return self.files.prompts[name]

    def _templated(self, pair: Pair, instruction: str) -> str:
        assert self.score_template is not None
        values = {"{instruction}": instruction, "{query}": pair.query, "{document}": pair.document}
        # In one pass, because a query may spell {document}.
        return re.sub("|".join(map(re.escape, values)), lambda found: values[found[0]], self.score_template)

    def _encoded(self, inputs: "Sequence[Text | Pair]", params: PoolingParams, *, prefix: str = "") -> list[list[int]]:
        texts: list[Any] = []
        for item in inputs:
            if isinstance(item, Pair):
                check_text(item.query, param="query")
                check_text(item.document, param="documents")
                texts.append(tuple(item))
            elif isinstance(item, str):
                check_text(item, param="input")
                texts.append(prefix + (item.lower() if self.files.lowercase else item))
        rows = iter(self._tokenized(texts, params))
        return [
            next(rows) if isinstance(item, (str, Pair)) else self._checked_ids(list(item), params) for item in inputs
        ]

    def _checked_ids(self, token_ids: list[int], params: PoolingParams) -> list[int]:
        check_token_ids(token_ids, vocab_size=self._model_config.vocab_size, param="input")
        if not token_ids:
            raise InvalidRequestError("input has an empty list of token ids; send at least one", param="input")
        limit = self._limit(params)
        if len(token_ids) > limit:
            if params.truncate_prompt_tokens is None:
                raise self._too_long(len(token_ids))
            token_ids = token_ids[:limit]
        return token_ids

    def _limit(self, params: PoolingParams) -> int:
        wanted = params.truncate_prompt_tokens
        return self.max_input_tokens if wanted in (None, -1) else min(wanted or 0, self.max_input_tokens)

    def _tokenized(self, texts: Sequence[Any], params: PoolingParams) -> list[list[int]]:
        if not texts:
            return []
        tokenizer, limit = self._tokenizer, self._limit(params)
        if tokenizer is None:
            raise InvalidRequestError("this model has no tokenizer; send token ids", param="input")
        # A text that is too long by its length alone is refused, or cut, before it is tokenized.
        for text in texts:
            longest = text if isinstance(text, str) else text[1]
            check_chars(longest, num_tokens=limit, param="input")
            if (least := tokenizer.length_bound.min_tokens(longest)) > limit and params.truncate_prompt_tokens is None:
                raise self._too_long(least, "at least ")
        encodings = tokenizer.encode_batch(texts, add_special_tokens=params.add_special_tokens)
        num_words = int(self._model_config.hf_config.get("num_words") or 0)
        rows = []
        for text, encoding in zip(texts, encodings, strict=True):
            ids, segments = encoding.ids, encoding.type_ids
            if len(ids) > limit:
                if params.truncate_prompt_tokens is None:
                    raise self._too_long(len(ids))
                ids, segments = self._cut(text, ids, segments, limit)
            if not ids:
                raise InvalidRequestError("input is empty; send at least one character", param="input")
            if num_words and num_words < self._model_config.vocab_size and any(segments):
                ids = [num_words * segment + token for token, segment in zip(ids, segments, strict=True)]
            check_token_ids(ids, vocab_size=self._model_config.vocab_size, param="input")
            rows.append(ids)
        return rows

    def _cut(self, text: Any, ids: list[int], segments: list[int], limit: int) -> tuple[list[int], list[int]]:
        """Drop the end of the text, or of a pair's document, but no special token behind it."""
        assert self._tokenizer is not None
        body = self._tokenizer.encode(text if isinstance(text, str) else text[1], add_special_tokens=False)
        num_dropped = len(ids) - limit
        ends = range(len(ids), len(body) - 1, -1)
        stop = next((end for end in ends if ids[end - len(body) : end] == body), len(ids))
        start = max(0, stop - num_dropped)
        return (ids[:start] + ids[stop:])[:limit], (segments[:start] + segments[stop:])[:limit]

    def _too_long(self, num_tokens: int, at_least: str = "") -> ContextLengthError:
        limit = self.max_input_tokens
        return ContextLengthError(
            f"This model's maximum context length is {limit} tokens: the input has {at_least}{num_tokens} tokens; "
            f"shorten it, set truncate_prompt_tokens to {limit} or less, or start with a larger {self._too_long_hint}",
            param="input",
        )

    # Results.

    def _normalizes(self, params: PoolingParams) -> bool:
        return self._normalize if params.normalize is None else params.normalize

    def _embedding(self, state: Array, *, params: PoolingParams) -> Array:
        vector = self._embed_head(state)
        if params.dimensions is not None:
            vector = vector[: params.dimensions]
        return normalized(vector) if self._normalizes(params) else vector

    def _classifier(self, runner: ModelRunner, settings: PoolerConfig) -> Head | None:
        if settings.classifier_from_token:
            return self._token_classifier(runner, settings.classifier_from_token)
        heads = getattr(runner.model, "pooling_heads", None)
        return None if heads is None else chain(heads)

    def _token_classifier(self, runner: ModelRunner, tokens: Sequence[str]) -> Head:
        """Return the head that picks the labels' logits out of the next token's (Qwen3-Reranker)."""
        if not self.generates or self._tokenizer is None:
            raise ConfigError("pooler_config: classifier_from_token needs a model that generates, and its tokenizer")
        rows = [self._tokenizer.encode(token, add_special_tokens=False) for token in tokens]
        for token, ids in zip(tokens, rows, strict=True):
            if len(ids) != 1:
                raise ConfigError(
                    f"pooler_config: classifier_from_token: {token!r} is {len(ids)} tokens; name single tokens"
                )
        index = torch.tensor([ids[0] for ids in rows])

        def logits(state: Array) -> Array:
            hidden = torch.from_numpy(state)[None].to(device=runner.loaded.device, dtype=runner.loaded.dtype)
            with torch.inference_mode():
                found = runner.model.logits(hidden)[0].float().cpu().index_select(0, index)
            labels: Array = found.numpy()
            return labels

        return logits

    def _classes(self, state: Array, *, params: PoolingParams) -> Array:
        assert self._class_head is not None
        logits = self._class_head(state)
        wants = self._use_activation if params.use_activation is None else params.use_activation
        if not wants:
            return logits
        return sigmoid(logits) if len(logits) == 1 else softmax(logits)

    def _score(self, state: Array, *, params: PoolingParams) -> Array:
        """Return [1]: the only label's probability, or the last one's of several ("yes")."""
        if params.use_activation is None and self._prefers_identity:
            params = replace(params, use_activation=False)
        return self._classes(state, params=params)[-1:]


def _is_identity(fields: Any) -> bool:
    """True if the files of a cross-encoder say that its scores are plain logits."""
    described = fields.get("sentence_transformers") or {}
    name = described.get("activation_fn") if isinstance(described, dict) else None
    return str(name or fields.get("sbert_ce_default_activation_function") or "").endswith("Identity")
