"""The `dspy` package against a server: `python tests/clients/dspy_sdk.py BASE_URL`."""

import sys
from typing import Any, Literal

import dspy
from checks import ANSWER, QUESTION, key, main, model_of, raised
from dspy.utils.exceptions import ContextWindowExceededError, LMInvalidRequestError


class Weather(dspy.Signature):
    """Say how the weather is."""

    question: str = dspy.InputField()
    weather: Literal["rain", "sun"] = dspy.OutputField()


class Call(dspy.Signature):
    """Call a tool."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


def weather(town: Literal["Rome", "Oslo"]) -> str:
    """The weather in a town."""
    return ANSWER


class Able(dspy.LM):
    """Model with both abilities: dspy assumes neither for a model outside its catalogue."""

    supports_function_calling = True
    supports_response_schema = True
    supported_params = frozenset({"max_tokens", "response_format", "temperature", "tool_choice", "tools"})


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)

    def text(self) -> None:
        for kind in ("chat", "text", "responses"):
            (answer,) = self._lm(model_type=kind, max_tokens=24)(QUESTION)
            assert answer, kind

    def usage(self) -> None:
        lm = self._lm(max_tokens=24)
        lm(QUESTION)
        assert lm.history[-1]["usage"]["completion_tokens"] > 0

    def predict(self) -> None:
        with dspy.context(lm=self._lm(), adapter=dspy.JSONAdapter()):
            assert dspy.Predict(Weather)(question=QUESTION).weather in ("rain", "sun")

    def native_tool_call(self) -> None:
        tool = dspy.Tool(weather)
        with dspy.context(
            lm=self._lm(tool_choice="required"), adapter=dspy.ChatAdapter(use_native_function_calling=True)
        ):
            calls = dspy.Predict(Call)(question=QUESTION, tools=[tool]).calls
        assert calls.tool_calls[0].name == "weather"
        assert calls.tool_calls[0].execute([tool]) == ANSWER

    def errors(self) -> None:
        raised(ContextWindowExceededError, lambda: self._lm(max_tokens=24)("x " * 100_000))
        raised(LMInvalidRequestError, lambda: self._lm(model="openai/another")(QUESTION))

    def _lm(self, **fields: Any) -> Able:
        where: dict[str, Any] = {"api_base": f"{self._url}/v1", "api_key": key(), "cache": False, "num_retries": 0}
        return Able(**{"model": f"openai/{self._name}", "max_tokens": 80, "temperature": 0, **where, **fields})


if __name__ == "__main__":
    sys.exit(main(Checks, "dspy"))
