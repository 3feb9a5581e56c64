"""`magentic` against a scripted server: `python tests/clients/magentic_sdk.py BASE_URL`."""

import sys

from checks import ANSWER, CALL, QUESTION, WET, follow, key, main, model_of, said
from magentic import FunctionCall, OpenaiChatModel, StreamedStr, prompt, prompt_chain
from pydantic import BaseModel


class Town(BaseModel):
    """A town."""

    town: str


def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._model = OpenaiChatModel(model_of(url), base_url=f"{url}/v1", api_key=key())

    def text(self) -> None:
        @prompt(QUESTION, model=self._model)
        def ask() -> str: ...

        follow(self._url, ANSWER, needs_tools=False)
        assert ask() == ANSWER

    def stream(self) -> None:
        @prompt(QUESTION, model=self._model)
        def ask() -> StreamedStr: ...

        follow(self._url, ANSWER, needs_tools=False)
        assert "".join(ask()) == ANSWER

    def structured(self) -> None:
        @prompt(QUESTION, model=self._model)
        def ask() -> Town: ...

        follow(self._url, {"name": "return_town", "arguments": {"town": "Rome"}}, needs_tools=False)
        assert ask() == Town(town="Rome")

    def function_call(self) -> None:
        @prompt(QUESTION, functions=[weather], model=self._model)
        def ask() -> FunctionCall[str]: ...

        follow(self._url, CALL)
        assert ask()() == ANSWER

    def chain(self) -> None:
        @prompt_chain(QUESTION, functions=[weather], model=self._model)
        def ask() -> str: ...

        follow(self._url, CALL, WET)
        assert ask() == WET
        assert ANSWER in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "magentic"))
