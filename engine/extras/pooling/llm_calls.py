"""Calls of LLM that pool: embed, encode, classify, score."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import InvalidRequestError
from .outputs import PooledData, PoolingRequestOutput
from .params import NO_POOLING, Pair, PoolingParams, similarity
from .pooler import PooledPrompt, Pooler, Text

if TYPE_CHECKING:
    from ...serving.llm import LLM

Texts = Text | Sequence[Text]
TASKS = ("embed", "classify", "token_embed")


def embed(
    llm: "LLM", prompts: Any, pooling_params: PoolingParams | None = None, use_tqdm: Any = False
) -> list[PoolingRequestOutput]:
    """Return one PoolingRequestOutput per prompt, whose `outputs.embedding` is a list of floats.

    `pooling_params`: a PoolingParams, such as PoolingParams(dimensions=256). Raises InvalidRequestError.
    """
    return encode(llm, prompts, pooling_params, pooling_task="embed")


def classify(
    llm: "LLM", prompts: Any, pooling_params: PoolingParams | None = None, use_tqdm: Any = False
) -> list[PoolingRequestOutput]:
    """Like `embed`, for a model with labels: `outputs.probs` is a list of probabilities."""
    return encode(llm, prompts, pooling_params, pooling_task="classify")


def encode(
    llm: "LLM",
    prompts: Any,
    pooling_params: PoolingParams | None = None,
    use_tqdm: Any = False,
    *,
    pooling_task: str = "token_embed",
) -> list[PoolingRequestOutput]:
    """Pool prompts for a task: embed, classify, or token_embed, whose `outputs.data` has a vector per token.

    A prompt is a text, token ids or vLLM's {"prompt": …}; give one or a list of them. Raises InvalidRequestError.
    """
    pooler, fields = pooler_of(llm), pooling_params or PoolingParams()
    if pooling_task not in TASKS:
        raise InvalidRequestError(
            f"pooling_task {pooling_task!r} is not known; known: {', '.join(TASKS)}", param="pooling_task"
        )
    inputs = list(map(_content, prompts_of(prompts)))
    read = {"embed": pooler.embedding_prompts, "classify": pooler.class_prompts, "token_embed": pooler.state_prompts}
    return _outputs(llm, read[pooling_task](inputs, fields))


def score(
    llm: "LLM", data_1: Texts, data_2: Texts, /, pooling_params: PoolingParams | None = None, use_tqdm: Any = False
) -> list[PoolingRequestOutput]:
    """Score each of the second texts for the first, or for its own first: `outputs.score`.

    A model without labels scores by the cosine of its embeddings. Raises InvalidRequestError.
    """
    pooler, fields = pooler_of(llm), pooling_params or PoolingParams()
    left, right = list(map(_content, prompts_of(data_1))), list(map(_content, prompts_of(data_2)))
    if len(left) not in (1, len(right)):
        raise InvalidRequestError(f"{len(left)} queries but {len(right)} documents; give one query, or one each")
    many = left * len(right) if len(left) == 1 else left
    if pooler.classifies:
        pairs = [Pair(str(query), str(document)) for query, document in zip(many, right, strict=True)]
        return _outputs(llm, pooler.score_prompts(pairs, fields))
    embedded = _outputs(llm, pooler.embedding_prompts([*left, *right], fields))
    first, second = embedded[: len(left)], embedded[len(left) :]
    for output, query in zip(second, first * len(second) if len(first) == 1 else first, strict=True):
        output.outputs = PooledData([similarity(query.outputs.embedding, output.outputs.embedding)])
        output.prompt_token_ids = query.prompt_token_ids + output.prompt_token_ids
    return second


def pooler_of(llm: "LLM") -> Pooler:
    """Return the pooler of an LLM. Raises InvalidRequestError for a model that does not pool."""
    pooler = llm.engine.part(Pooler)
    if pooler is None:
        raise InvalidRequestError(NO_POOLING)
    return pooler


def prompts_of(prompts: Any) -> list[Any]:
    """Return one prompt or several as a list."""
    is_one = isinstance(prompts, (str, dict)) or (bool(prompts) and isinstance(prompts[0], int))
    return [prompts] if is_one else list(prompts)


def _content(prompt: Any) -> Any:
    return prompt.get("prompt", prompt.get("prompt_token_ids")) if isinstance(prompt, dict) else prompt


def _outputs(llm: "LLM", prompts: Sequence[PooledPrompt]) -> list[PoolingRequestOutput]:
    ran = llm.begin([{"prompt_token_ids": item.token_ids} for item in prompts], [item.params for item in prompts])
    outputs = ran.joined()
    found = []
    for output, prompt in zip(outputs, prompts, strict=True):
        assert prompt.task.result is not None, "the request has ended"
        data = PooledData(prompt.task.result.tolist())
        found.append(PoolingRequestOutput(output.request_id, data, prompt.token_ids, output.num_cached_tokens))
    return found
