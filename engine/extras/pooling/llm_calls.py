"""Calls of LLM that pool: embed, encode, classify, score."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import InvalidRequestError
from .outputs import PooledData, PoolingRequestOutput
from .params import Pair, PoolingParams
from .pooler import PooledPrompt, Pooler, Text
from .refusal import NO_POOLING
from .similarity import similarity

if TYPE_CHECKING:
    from ...serving.llm import LLM

Texts = Text | Sequence[Text]
TASKS = ("embed", "classify", "token_embed")


def run(llm: "LLM", task: str, prompts: Any, params: PoolingParams | None) -> list[PoolingRequestOutput]:
    """Pool prompts: a text, token ids or vLLM's {"prompt": …}, one or a list of them. Raises InvalidRequestError."""
    pooler, fields = pooler_of(llm), params or PoolingParams()
    if task not in TASKS:
        raise InvalidRequestError(
            f"pooling_task {task!r} is not known; known: {', '.join(TASKS)}", param="pooling_task"
        )
    inputs = list(map(_content, prompts_of(prompts)))
    read = {"embed": pooler.embedding_prompts, "classify": pooler.class_prompts, "token_embed": pooler.state_prompts}
    return _outputs(llm, read[task](inputs, fields))


def score(llm: "LLM", queries: Texts, documents: Texts, params: PoolingParams | None) -> list[PoolingRequestOutput]:
    """Score each document for its query, or for the only one. Raises InvalidRequestError."""
    pooler, fields = pooler_of(llm), params or PoolingParams()
    left, right = list(map(_content, prompts_of(queries))), list(map(_content, prompts_of(documents)))
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


def pooler_of(llm: Any) -> Pooler:
    """Return the pooler of an LLM or AsyncEngine. Raises InvalidRequestError for a model that does not pool."""
    if llm.pooler is None:
        raise InvalidRequestError(NO_POOLING)
    pooler: Pooler = llm.pooler
    return pooler


def prompts_of(prompts: Any) -> list[Any]:
    """Return one prompt or several as a list."""
    is_one = isinstance(prompts, (str, dict)) or (bool(prompts) and isinstance(prompts[0], int))
    return [prompts] if is_one else list(prompts)


def _content(prompt: Any) -> Any:
    return prompt.get("prompt", prompt.get("prompt_token_ids")) if isinstance(prompt, dict) else prompt


def _outputs(llm: "LLM", prompts: Sequence[PooledPrompt]) -> list[PoolingRequestOutput]:
    ran = llm._begin([{"prompt_token_ids": item.token_ids} for item in prompts], [item.params for item in prompts])
    outputs = ran.joined()
    found = []
    for output, prompt in zip(outputs, prompts, strict=True):
        assert prompt.task.result is not None, "the request has ended"
        data = PooledData(prompt.task.result.tolist())
        found.append(PoolingRequestOutput(output.request_id, data, prompt.token_ids, output.num_cached_tokens))
    return found
