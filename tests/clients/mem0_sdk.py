"""`mem0ai` against a scripted server: `python tests/clients/mem0_sdk.py BASE_URL`."""

import json
import os
import sys
import tempfile
from typing import Any

os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": tempfile.mkdtemp(prefix="splitfuse-")}

from checks import QUESTION, follow, key, main, model_of
from mem0 import Memory
from mem0.embeddings.mock import MockEmbeddings
from mem0.utils.factory import EmbedderFactory

FACT = "Likes the rain of Rome"
EmbedderFactory.create = lambda *_: MockEmbeddings()  # the server has no embeddings


class Checks:
    """Checks of the client, whose vectors are its own stand-in: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        name = {"model": model_of(url), "api_key": key()}
        self._llms = {
            "openai": {**name, "openai_base_url": f"{url}/v1"},
            "vllm": {**name, "vllm_base_url": f"{url}/v1"},
        }

    def openai(self) -> None:
        self._remembers("openai")

    def vllm(self) -> None:
        self._remembers("vllm")

    def _remembers(self, provider: str) -> None:
        """The model finds a fact in the messages, and the fact is kept."""
        memory = Memory.from_config(self._config(provider))
        found = json.dumps({"memory": [{"id": "0", "text": FACT}]})
        follow(self._url, found, needs_tools=False)
        messages: Any = [{"role": "user", "content": QUESTION}]
        memory.add(messages, user_id=provider)
        kept = memory.get_all(filters={"user_id": provider})["results"]
        assert [one["memory"] for one in kept] == [FACT], kept

    def _config(self, provider: str) -> dict[str, Any]:
        path = tempfile.mkdtemp(prefix="splitfuse-")
        return {
            "llm": {"provider": provider, "config": self._llms[provider]},
            "vector_store": {"provider": "qdrant", "config": {"path": path, "embedding_model_dims": 10}},
        }


if __name__ == "__main__":
    sys.exit(main(Checks, "mem0ai"))
