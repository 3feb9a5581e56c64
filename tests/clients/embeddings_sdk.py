"""Packages that embed and rerank, against a server that pools: `python tests/clients/embeddings_sdk.py BASE_URL`."""

import asyncio
import math
import sys
from collections.abc import Sequence
from typing import Any

import cohere
import httpx
import ollama
import openai
from checks import key, main, model_of, raised
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.dataclasses import Document
from haystack.utils import Secret
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

TEXTS = ["It rains in Rome.", "Bread is baked in the morning.", "The weather is wet."]


def near(first: Sequence[float], second: Sequence[float]) -> bool:
    """True if two embeddings are the same but for the rounding of what carried them."""
    return len(first) == len(second) and all(
        math.isclose(x, y, abs_tol=1e-6) for x, y in zip(first, second, strict=True)
    )


class Checks:
    """Checks of the clients: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._model = url, model_of(url)
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key=key(), max_retries=0)

    def _embedded(self, texts: Sequence[str], **more: Any) -> list[list[float]]:
        answer = self._client.embeddings.create(model=self._model, input=list(texts), **more)
        return [item.embedding for item in answer.data]

    def openai_embeddings(self) -> None:
        answer = self._client.embeddings.create(model=self._model, input=TEXTS)  # the package asks for base64
        assert [item.index for item in answer.data] == [0, 1, 2]
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > 3
        plain = self._embedded(TEXTS, encoding_format="float")
        assert all(near(*pair) for pair in zip(plain, (item.embedding for item in answer.data), strict=True))
        (alone,) = self._embedded(TEXTS[1:2])
        assert near(alone, plain[1])

    def openai_dimensions(self) -> None:
        ((whole,), (short,)) = self._embedded(TEXTS[:1]), self._embedded(TEXTS[:1], dimensions=16)
        length = math.hypot(*whole[:16])
        assert near(short, [x / length for x in whole[:16]])
        error = raised(openai.BadRequestError, lambda: self._embedded(TEXTS[:1], dimensions=10**6))
        assert "dimensions" in str(error)

    def openai_async(self) -> None:
        client = openai.AsyncOpenAI(base_url=f"{self._url}/v1", api_key=key(), max_retries=0)

        async def all_at_once() -> list[Any]:
            async with client:
                return await asyncio.gather(
                    *(client.embeddings.create(model=self._model, input=f"text {number}") for number in range(20))
                )

        vectors = [answer.data[0].embedding for answer in asyncio.run(all_at_once())]
        assert near(vectors[7], self._embedded(["text 7"])[0])

    def langchain(self) -> None:
        """The package sends token ids, unless it is told to send texts."""
        asked: dict[str, Any] = {"model": self._model, "base_url": f"{self._url}/v1", "api_key": key()}
        embedder = OpenAIEmbeddings(**asked, check_embedding_ctx_length=False)
        vectors = embedder.embed_documents(TEXTS)
        assert all(near(*pair) for pair in zip(vectors, self._embedded(TEXTS), strict=True))
        assert near(embedder.embed_query(TEXTS[0]), vectors[0])

    def llama_index(self) -> None:
        embedder = OpenAILikeEmbedding(model_name=self._model, api_base=f"{self._url}/v1", api_key=key())
        vectors = embedder.get_text_embedding_batch(TEXTS)
        assert all(near(*pair) for pair in zip(vectors, self._embedded(TEXTS), strict=True))

    def haystack(self) -> None:
        asked: dict[str, Any] = {
            "model": self._model,
            "api_base_url": f"{self._url}/v1",
            "api_key": Secret.from_token(key()),
        }
        vector = OpenAITextEmbedder(**asked).run(TEXTS[0])["embedding"]
        documents = OpenAIDocumentEmbedder(**asked).run([Document(content=text) for text in TEXTS])["documents"]
        assert near(vector, self._embedded(TEXTS[:1])[0])
        assert near(documents[0].embedding, vector)

    def cohere_rerank(self) -> None:
        client = cohere.ClientV2(api_key=key(), base_url=self._url)
        answer = client.rerank(model=self._model, query=TEXTS[2], documents=TEXTS, top_n=2)
        assert answer.results[0].index == 2
        assert answer.results[0].relevance_score >= answer.results[1].relevance_score
        assert len(answer.results) == 2

    def ollama_embed(self) -> None:
        client = ollama.Client(host=self._url, headers={"Authorization": f"Bearer {key()}"})
        answer = client.embed(self._model, TEXTS)
        assert all(near(*pair) for pair in zip(answer.embeddings, self._embedded(TEXTS), strict=True))
        assert near(client.embeddings(self._model, TEXTS[0]).embedding, answer.embeddings[0])

    def open_webui(self) -> None:
        """Send the bodies of Open WebUI 0.12.4 (open_webui/retrieval: utils.py, models/external.py).

        Embeddings of its engines openai and ollama, and its external reranker; the package is not installed.
        """
        model = self._model
        with httpx.Client(base_url=self._url, headers={"Authorization": f"Bearer {key()}"}) as client:

            def answer(path: str, **body: Any) -> dict[str, Any]:
                result = client.post(path, json=body)
                result.raise_for_status()
                fields: dict[str, Any] = result.json()
                return fields

            vectors = [item["embedding"] for item in answer("/v1/embeddings", input=TEXTS, model=model)["data"]]
            assert all(near(*pair) for pair in zip(vectors, self._embedded(TEXTS), strict=True))
            embedded = answer("/api/embed", input=TEXTS, model=model, truncate=True)["embeddings"]
            assert all(near(*pair) for pair in zip(embedded, vectors, strict=True))
            ranked = answer("/v1/rerank", model=model, query=TEXTS[2], documents=TEXTS, top_n=len(TEXTS))["results"]
            scores = [item["relevance_score"] for item in sorted(ranked, key=lambda item: item["index"])]
            assert len(scores) == len(TEXTS)
            assert max(scores) == scores[2]


if __name__ == "__main__":
    sys.exit(main(Checks, "openai"))
