"""The `guidance` package against a server: `python tests/clients/guidance_sdk.py BASE_URL`."""

import re
import sys
from typing import Any, Literal

import openai
from checks import ANSWER, QUESTION, TOWN_SCHEMA, key, main, model_of, raised
from guidance import Tool, assistant, gen, json, models, select, user
from guidance.models.experimental import VLLMModel
from pydantic import BaseModel


class Town(BaseModel):
    """The arguments of a call."""

    town: Literal["Rome", "Oslo"]


class Checks:
    """Checks: one method per check, run in this order. The OpenAI model of guidance itself refuses select and regex."""

    def __init__(self, url: str) -> None:
        where: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": key(), "echo": False}
        self._openai = models.OpenAI(model_of(url), **where)
        self._vllm = VLLMModel(model_of(url), **where)
        self._wrong = models.OpenAI("another", **where)

    def text(self) -> None:
        assert self._ask(self._openai, gen("it", max_tokens=24))
        assert self._ask(self._vllm, gen("it", max_tokens=24))

    def json_schema(self) -> None:
        for model in (self._openai, self._vllm):
            assert '"town"' in self._ask(model, json("it", schema=TOWN_SCHEMA, max_tokens=60))

    def choice(self) -> None:
        assert self._ask(self._vllm, select(["rain", "sun"], name="it")) in ("rain", "sun")

    def regex(self) -> None:
        assert re.fullmatch("[0-9]{2} C", self._ask(self._vllm, gen("it", regex="[0-9]{2} C")))

    def tool_and_its_result(self) -> None:
        called: list[str] = []

        def weather(town: str) -> str:
            called.append(town)
            return ANSWER

        tool = Tool.from_callable(weather, description="The weather in a town", parameters=Town)
        with user():
            model = self._openai + QUESTION
        with assistant():
            # With tools guidance takes no max_tokens: under "auto" a small model would fill its whole context.
            model += gen(tools=[tool], tool_choice="required")
            model += gen("it", max_tokens=24)
        assert called

    def errors(self) -> None:
        raised(openai.NotFoundError, lambda: self._ask(self._wrong, gen("it", max_tokens=4)))

    def _ask(self, model: Any, answer: Any) -> str:
        with user():
            model += QUESTION
        with assistant():
            model += answer
        return str(model["it"])


if __name__ == "__main__":
    sys.exit(main(Checks, "guidance"))
