"""The `ollama` and `openai` packages choose models of one server: `python tests/clients/models_sdk.py BASE_URL`."""

import sys
import time
from typing import Any

import ollama
import openai
from checks import key, main, raised

USER: Any = {"role": "user", "content": "Say hello."}
FEW: Any = {"num_predict": 4}


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._ollama = ollama.Client(host=url, headers={"Authorization": f"Bearer {key()}"})
        self._openai = openai.OpenAI(base_url=f"{url}/v1", api_key=key())
        self._names = [model.model or "" for model in self._ollama.list().models]

    def lists_agree(self) -> None:
        assert len(self._names) > 1
        assert [model.id for model in self._openai.models.list()] == self._names
        assert all((model.size or 0) > 0 for model in self._ollama.list().models)

    def openai_chooses(self) -> None:
        for name in self._names:
            answer = self._openai.chat.completions.create(model=name, messages=[USER], max_tokens=4)
            assert answer.model == name
            assert self._running() == [name]

    def ollama_chooses(self) -> None:
        for name in self._names:
            assert self._ollama.chat(name, [USER], options=FEW).model == name
            assert self._ollama.generate(f"{name}:latest", "Once", options=FEW).done
            assert "completion" in (self._ollama.show(name).capabilities or [])
            assert (self._ollama.ps().models[0].context_length or 0) > 0
            assert self._running() == [name]

    def keep_alive(self) -> None:
        name = self._names[0]
        assert self._ollama.generate(name, keep_alive=300).done_reason == "load"
        left = self._ollama.ps().models[0].expires_at
        assert left is not None
        assert 200 < left.timestamp() - time.time() <= 300
        self._ollama.generate(name, "Once", options=FEW, keep_alive=-1)
        left = self._ollama.ps().models[0].expires_at
        assert left is not None
        assert left.year > 2100

    def unload(self) -> None:
        assert self._ollama.generate(self._names[0], keep_alive=0).done_reason == "unload"
        self._until_empty()
        self._ollama.chat(self._names[0], [USER], options=FEW, keep_alive=0)
        self._until_empty()

    def unknown(self) -> None:
        assert raised(ollama.ResponseError, lambda: self._ollama.chat("none", [USER])).status_code == 404
        assert raised(ollama.ResponseError, lambda: self._ollama.show("none")).status_code == 404
        ask = self._openai.chat.completions.create
        assert raised(openai.NotFoundError, lambda: ask(model="none", messages=[USER])).code == "model_not_found"
        assert raised(openai.NotFoundError, lambda: self._openai.models.retrieve("none")).status_code == 404

    def create_is_refused_by_name(self) -> None:
        create = self._ollama.create
        error = raised(ollama.ResponseError, lambda: create("mine", from_=self._names[0], system="Be brief."))
        assert "create is not supported" in error.error

    def _running(self) -> list[str]:
        return [model.model or "" for model in self._ollama.ps().models]

    def _until_empty(self) -> None:
        limit = time.monotonic() + 60
        while self._running():
            assert time.monotonic() < limit
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(Checks, "ollama"))
