"""The `outlines` package against a server: `python tests/clients/outlines_sdk.py BASE_URL`."""

import re
import sys
import warnings
from typing import Literal

import openai
import outlines
from checks import QUESTION, key, main, model_of, raised
from outlines.exceptions import NotFoundError
from outlines.types import CFG, Regex
from pydantic import BaseModel

LARK = 'start: "rain" | "sun"'
EBNF = 'root ::= "rain" | "sun"'


class Town(BaseModel):
    """A town."""

    town: Literal["Rome", "Oslo"]


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=key(), max_retries=0)
        self._name = model_of(url)
        self._openai = outlines.from_openai(client, self._name)
        self._vllm = outlines.from_vllm(client, self._name)
        self._sglang = outlines.from_sglang(client, self._name)
        self._wrong = outlines.from_openai(client, "another")

    def text(self) -> None:
        for model in (self._openai, self._vllm, self._sglang):
            assert model(QUESTION, max_tokens=24)

    def stream(self) -> None:
        for model in (self._openai, self._vllm, self._sglang):
            assert len(list(model.stream(QUESTION, max_tokens=24))) > 1

    def pydantic(self) -> None:
        for model in (self._openai, self._vllm, self._sglang):
            Town.model_validate_json(model(QUESTION, Town, max_tokens=60))

    def choice(self) -> None:
        for model in (self._vllm, self._sglang):
            assert model(QUESTION, Literal["rain", "sun"], max_tokens=10) in ("rain", "sun")

    def regex(self) -> None:
        for model in (self._vllm, self._sglang):
            assert re.fullmatch("[0-9]{2} C", model(QUESTION, Regex("[0-9]{2} C"), max_tokens=10))

    def grammar(self) -> None:
        assert self._vllm(QUESTION, CFG(LARK), max_tokens=10) in ("rain", "sun")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert self._sglang(QUESTION, CFG(EBNF), max_tokens=10) in ("rain", "sun")

    def errors(self) -> None:
        raised(NotFoundError, lambda: self._wrong(QUESTION))


if __name__ == "__main__":
    sys.exit(main(Checks, "outlines"))
