"""`crewai` against a scripted server: `python tests/clients/crewai_sdk.py BASE_URL`."""

import os
import sys

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

from checks import ANSWER, QUESTION, follow, key, main, model_of, said
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("weather")
def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._llm = LLM(model=f"openai/{model_of(url)}", base_url=f"{url}/v1", api_key=key())

    def call(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert self._llm.call(QUESTION) == ANSWER

    def crew(self) -> None:
        follow(self._url, {"name": "weather", "arguments": {"town": "Rome"}}, "It is wet.", needs_tools=False)
        agent = Agent(role="helper", goal="help", backstory="none", llm=self._llm, tools=[weather], max_iter=3)
        task = Task(description=QUESTION, expected_output="a sentence", agent=agent)
        assert "It is wet." in str(Crew(agents=[agent], tasks=[task]).kickoff())
        assert ANSWER in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "crewai"))
