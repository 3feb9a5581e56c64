"""Answers of the routes that pool: OpenAI's, Cohere's, Jina's and vLLM's forms."""

import base64
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ...service import Service
from .work import Usage


def embedding_list(service: Service, vectors: Sequence[Any], usage: Usage, *, encoding_format: str) -> dict[str, Any]:
    """Return OpenAI's list of embeddings. base64: little-endian float32, four bytes a number."""
    encode = _base64 if encoding_format == "base64" else _floats
    data = (
        {"object": "embedding", "index": index, "embedding": encode(vector)} for index, vector in enumerate(vectors)
    )
    return {**head(service, "embd-"), "data": data, "usage": usage.to_dict()}


def head(service: Service, prefix: str) -> dict[str, Any]:
    """Return the fields that begin a list."""
    tagged = prefix + service.settings.id_tag + secrets.token_hex(16)
    return {"id": tagged, "object": "list", "created": int(time.time()), "model": service.settings.model_name}


def pooling_list(service: Service, results: Sequence[Any], usage: Usage, *, encoding_format: str) -> dict[str, Any]:
    """Return vLLM's list of states, a vector for each token."""
    encode = _base64 if encoding_format == "base64" else _rows
    data = ({"object": "pooling", "index": index, "data": encode(result)} for index, result in enumerate(results))
    return {**head(service, "pool-"), "data": data, "usage": usage.to_dict()}


def class_list(service: Service, labels: Sequence[str], rows: Sequence[Any], usage: Usage) -> dict[str, Any]:
    """Return vLLM's list of labels, the likeliest one of each input with all probabilities."""
    data = []
    for index, row in enumerate(rows):
        probs = _floats(row)
        best = max(range(len(probs)), key=probs.__getitem__)
        label = labels[best] if best < len(labels) else f"LABEL_{best}"
        data.append({"index": index, "label": label, "probs": probs, "num_classes": len(probs)})
    return {**head(service, "classify-"), "data": data, "usage": usage.to_dict()}


def score_list(service: Service, scores: Sequence[float], usage: Usage) -> dict[str, Any]:
    """Return vLLM's list of scores."""
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return {**head(service, "score-"), "data": data, "usage": usage.to_dict()}


def ranking(
    service: Service, scores: Sequence[float], usage: Usage, *, texts: Sequence[str] | None, top_n: int | None
) -> dict[str, Any]:
    """Return the documents by falling score, in the form that Cohere's and Jina's clients read. `texts`: with them."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:top_n]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if texts is not None:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    tagged = "rerank-" + service.settings.id_tag + secrets.token_hex(16)
    units = {"billed_units": {"search_units": 1}, "api_version": {"version": "2"}}
    return {
        "id": tagged, "model": service.settings.model_name, "usage": usage.to_dict(), "results": results, "meta": units,
    }  # fmt: skip


def _floats(vector: Any) -> Any:
    return vector.tolist()


def _rows(result: Any) -> Any:
    """Return a vector, or one vector after the other: all tokens of a prompt together would hold the loop."""
    rows: Iterator[Any] = map(_floats, result)
    return rows if result.ndim > 1 else result.tolist()


def _base64(vector: Any) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
