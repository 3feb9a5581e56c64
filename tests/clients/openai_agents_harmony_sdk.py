"""`openai-agents` against a server of gpt-oss: `python tests/clients/openai_agents_harmony_sdk.py BASE_URL`.

The model is random: grammars force calls and answers, and a bias the reasoning before them.
"""

import asyncio
import json
import sys
import urllib.request
from typing import Any, Literal

import openai
from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    RunResult,
    RunResultStreaming,
    function_tool,
    set_tracing_disabled,
)
from checks import ANSWER, QUESTION, key, main, model_of
from openai.types.shared import Reasoning
from pydantic import BaseModel


class Town(BaseModel):
    """Output type of the agent."""

    town: Literal["Rome", "Oslo"]


class Checks:
    """Checks: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        set_tracing_disabled(True)
        self._url, self._model = url, model_of(url)
        bias = {self._token_id("a"): 30.0, self._token_id("<|end|>"): 28.0, self._token_id("f"): 15.0}
        self._thinking: dict[str, Any] = {"logit_bias": bias, "seed": 3}
        self._called: list[str] = []

    def chat_reasoning_call_and_answer(self) -> None:
        self._check(asyncio.run(self._run(self._chat_model())))

    def responses_reasoning_call_and_answer(self) -> None:
        self._check(asyncio.run(self._run(self._responses_model())))

    def chat_streamed_loop(self) -> None:
        self._check(asyncio.run(self._run(self._chat_model(), is_streamed=True)))

    def responses_streamed_loop(self) -> None:
        self._check(asyncio.run(self._run(self._responses_model(), is_streamed=True)))

    def effort_in_the_prompt(self) -> None:
        for model in (self._chat_model, self._responses_model):
            lengths = {}
            for effort in ("low", "medium"):
                result = asyncio.run(self._run(model(), effort=effort))
                lengths[effort] = result.raw_responses[0].usage.input_tokens
            assert lengths["medium"] - lengths["low"] == len("medium") - len("low")  # tokens are bytes

    def _chat_model(self) -> Model:
        return OpenAIChatCompletionsModel(self._model, self._client())

    def _responses_model(self) -> Model:
        return OpenAIResponsesModel(self._model, self._client())

    def _client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self._url}/v1", api_key=key(), max_retries=0)

    def _token_id(self, text: str) -> str:
        body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
        headers = {"Authorization": f"Bearer {key()}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{self._url}/tokenize", body, headers)) as answer:
            (token_id,) = json.load(answer)["tokens"]
        return str(token_id)

    async def _run(
        self, model: Model, *, effort: Any = "medium", is_streamed: bool = False
    ) -> RunResult | RunResultStreaming:
        self._called.clear()

        @function_tool
        def weather(town: Literal["Rome", "Oslo"]) -> str:
            """Return the weather in a town."""
            self._called.append(town)
            return ANSWER

        settings = ModelSettings(
            tool_choice="required",  # the package sets auto after the first call
            max_tokens=400,
            temperature=1,
            parallel_tool_calls=False,
            reasoning=Reasoning(effort=effort),
            extra_body=self._thinking,
        )
        agent = Agent(name="a", model=model, tools=[weather], output_type=Town, model_settings=settings)
        if not is_streamed:
            return await Runner.run(agent, QUESTION, max_turns=6)
        streamed = Runner.run_streamed(agent, QUESTION, max_turns=6)
        kinds = [getattr(event.data, "type", "") async for event in streamed.stream_events() if hasattr(event, "data")]
        assert kinds.count("response.function_call_arguments.delta") > 3
        return streamed

    def _check(self, result: RunResult | RunResultStreaming) -> None:
        assert self._called
        assert isinstance(result.final_output, Town)
        kinds = [item.type for item in result.new_items]
        assert kinds[:3] == ["reasoning_item", "tool_call_item", "tool_call_output_item"], kinds
        assert kinds[-2:] == ["reasoning_item", "message_output_item"], kinds


if __name__ == "__main__":
    sys.exit(main(Checks, "openai-agents"))
