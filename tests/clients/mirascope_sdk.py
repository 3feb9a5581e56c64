"""`mirascope` against a scripted server: `python tests/clients/mirascope_sdk.py BASE_URL`."""

import sys
from typing import Any

from checks import ANSWER, CALL, QUESTION, WET, follow, key, main, model_of, said
from mirascope import llm
from pydantic import BaseModel


class Town(BaseModel):
    """A town."""

    town: str


@llm.tool
def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        llm.register_provider("openai", scope="openai/", base_url=f"{url}/v1", api_key=key())
        self._models: Any = [f"openai/{model_of(url)}:{api}" for api in ("completions", "responses")]

    def text(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        for model in self._models:
            assert self._asked(model)().text() == ANSWER

    def stream(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        for model in self._models:
            assert "".join(self._asked(model).stream().text_stream(sep="")) == ANSWER

    def structured(self) -> None:
        follow(self._url, '{"town": "Rome"}', needs_tools=False)
        for model in self._models:
            assert self._asked(model, format=Town)().parse() == Town(town="Rome")

    def tool_and_its_result(self) -> None:
        for model in self._models:
            follow(self._url, CALL, WET)
            first = self._asked(model, tools=[weather])()
            assert first.resume(first.execute_tools()).text() == WET
            assert ANSWER in said(self._url)[-1]

    def _asked(self, model: Any, **options: Any) -> Any:
        @llm.call(model, **options)
        def ask() -> str:
            return QUESTION

        return ask


if __name__ == "__main__":
    sys.exit(main(Checks, "mirascope"))
