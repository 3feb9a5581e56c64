"""Bodies of the routes that pool, and their conversion to what the Pooler reads."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SkipValidation

from ....engine.errors import InvalidRequestError
from ....engine.extras.pooling.params import Pair, PoolingParams
from ...api.request_model import ModelName, RequestModel, User

MAX_INPUTS = 2048  # OpenAI's limit
Texts = SkipValidation[str | list[str] | list[int] | list[list[int]]]


class PoolingFields(RequestModel):
    """Fields of every route that pools."""

    is_tolerant: ClassVar = True
    ignored: ClassVar = {"input_type": (), "task": (), "embedding_types": (["float"],), "late_chunking": (False,)}
    unsupported: ClassVar = {"truncation_side": ("right",)}
    model: ModelName = None
    user: User = ""
    truncate_prompt_tokens: Annotated[int | None, Field(description="Most tokens of an input; -1: the model's.")] = None
    priority: int = 0
    normalize: bool | None = None
    use_activation: Annotated[bool | None, Field(description="Softmax or sigmoid of a classifier's logits.")] = None
    add_special_tokens: bool = True
    prompt_name: Annotated[str | None, Field(description="One of the model's own prompts, such as query.")] = None
    dimensions: Annotated[int | None, Field(description="Keep the first dimensions, and normalise again.")] = None

    def params(self) -> PoolingParams:
        """Build the parameters. Raises InvalidRequestError."""
        return PoolingParams(
            dimensions=self.dimensions,
            normalize=self.normalize,
            use_activation=self.use_activation,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            prompt_name=self.prompt_name,
            add_special_tokens=self.add_special_tokens,
            priority=self.priority,
        )


class EmbeddingRequest(PoolingFields):
    """Texts to embed."""

    example: ClassVar = {"input": ["The food was good.", "It rains."]}
    input: Annotated[Texts, Field(description="A text, or token ids; or a list of them.")]
    encoding_format: Literal["float", "base64"] = "float"

    def inputs(self) -> list[Any]:
        """Return the inputs one by one. Raises InvalidRequestError."""
        return inputs_of(self.input, param="input")


class TextsRequest(EmbeddingRequest):
    """Texts, for the state of every token or for a label of each text."""

    task: str | None = None


class RerankRequest(PoolingFields):
    """A query, and documents to sort by their fit: Cohere's and Jina's body."""

    ignored: ClassVar = {**PoolingFields.ignored, "max_chunks_per_doc": (), "max_tokens_per_doc": (), "rank_fields": ()}
    example: ClassVar = {"query": "When does it rain?", "documents": ["In autumn.", "Bread is baked."]}
    query: str
    documents: SkipValidation[list[str | dict[str, Any]]]
    top_n: Annotated[int | None, Field(ge=1)] = None
    return_documents: bool | None = None
    instruction: Annotated[str | None, Field(description="Of a model whose prompt has one (Qwen3-Reranker).")] = None

    def texts(self) -> list[str]:
        """Return the documents' texts. Raises InvalidRequestError."""
        if not isinstance(self.documents, list):
            raise InvalidRequestError("documents must be a list", param="documents")
        return [_text(item, at=f"documents[{number}]") for number, item in enumerate(_few(self.documents, "documents"))]

    def pairs(self) -> list[Pair]:
        """Return the query with each document. Raises InvalidRequestError."""
        if not self.query:
            raise InvalidRequestError("query is empty; send at least one character", param="query")
        return [Pair(self.query, text) for text in self.texts()]


class ScoreRequest(PoolingFields):
    """Pairs of texts to score: vLLM's body."""

    example: ClassVar = {"text_1": "When does it rain?", "text_2": ["In autumn.", "Bread is baked."]}
    ignored: ClassVar = {**PoolingFields.ignored}
    text_1: SkipValidation[str | list[str] | None] = None
    text_2: SkipValidation[str | list[str] | None] = None
    queries: SkipValidation[str | list[str] | None] = None
    documents: SkipValidation[str | list[str] | None] = None
    data_1: SkipValidation[str | list[str] | None] = None
    data_2: SkipValidation[str | list[str] | None] = None

    def pairs(self) -> list[Pair]:
        """Return the pairs: one first text for all second ones, or one each. Raises InvalidRequestError."""
        left = _strings(_only_field({"text_1": self.text_1, "queries": self.queries, "data_1": self.data_1}))
        right = _strings(_only_field({"text_2": self.text_2, "documents": self.documents, "data_2": self.data_2}))
        if len(left) not in (1, len(right)):
            raise InvalidRequestError(f"{len(left)} texts and {len(right)} to score for them; give one, or one each",
                                      param="text_1")  # fmt: skip
        return [Pair(*pair) for pair in zip(left * len(right) if len(left) == 1 else left, right, strict=True)]


def inputs_of(value: Any, *, param: str) -> list[Any]:
    """Return a text, token ids, or a list of them, as a list. Raises InvalidRequestError."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise InvalidRequestError(f"{param} must be a text, a list of token ids, or a list of them", param=param)
    if all(type(item) is int for item in value):
        return [value]
    for number, item in enumerate(_few(value, param)):
        if not isinstance(item, str) and not (isinstance(item, list) and all(type(part) is int for part in item)):
            at = f"{param}[{number}]"
            raise InvalidRequestError(f"{at} must be a text or a list of token ids", param=at)
    return value


def length_of(inputs: Sequence[Any]) -> int:
    """Return the number of characters and ids of inputs and pairs."""
    return sum(sum(map(len, item)) if isinstance(item, Pair) else len(item) for item in inputs)


def _few(items: list[Any], param: str) -> list[Any]:
    if len(items) > MAX_INPUTS:
        raise InvalidRequestError(f"{param} takes at most {MAX_INPUTS} items, not {len(items)}", param=param)
    if not items:
        raise InvalidRequestError(f"{param} is empty; send at least one item", param=param)
    return items


def _text(item: Any, *, at: str) -> str:
    text = item.get("text") if isinstance(item, dict) else item
    if not isinstance(text, str):
        raise InvalidRequestError(f'{at} must be a text, or an object with "text"', param=at)
    return text


def _only_field(fields: dict[str, Any]) -> tuple[str, Any]:
    found = [(name, value) for name, value in fields.items() if value is not None]
    if len(found) != 1:
        raise InvalidRequestError(f"give one of {', '.join(fields)}", param=next(iter(fields)))
    return found[0]


def _strings(field: tuple[str, Any]) -> list[str]:
    name, value = field
    many = [value] if isinstance(value, str) else value
    if not isinstance(many, list) or not all(isinstance(item, str) for item in many):
        raise InvalidRequestError(f"{name} must be a text or a list of texts", param=name)
    return _few(many, name)
