"""`autogen-agentchat` against a scripted server: `python tests/clients/autogen_sdk.py BASE_URL`."""

import asyncio
import sys
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient
from checks import ANSWER, QUESTION, follow, key, main, model_of, said


async def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        info: Any = dict.fromkeys(("vision", "function_calling", "json_output", "structured_output"), True)
        info["family"] = "unknown"
        self._asked = {"model": model_of(url), "base_url": f"{url}/v1", "api_key": key(), "model_info": info}

    def agent_and_its_tool(self) -> None:
        for streams in (False, True):
            follow(self._url, {"name": "weather", "arguments": {"town": "Rome"}}, "It is wet.", needs_tools=False)
            agent = self._agent(reflect_on_tool_use=True, model_client_stream=streams)
            result = asyncio.run(agent.run(task=QUESTION))
            assert result.messages[-1].content == "It is wet.", result.messages
            assert ANSWER in said(self._url)[-1]

    def team(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        team = RoundRobinGroupChat([self._agent()], termination_condition=MaxMessageTermination(3))
        assert len(asyncio.run(team.run(task=QUESTION)).messages) == 3

    def _agent(self, **options: Any) -> AssistantAgent:
        return AssistantAgent("helper", OpenAIChatCompletionClient(**self._asked), tools=[weather], **options)


if __name__ == "__main__":
    sys.exit(main(Checks, "autogen-agentchat"))
