"""`langgraph` with three models against a scripted server: `python tests/clients/langgraph_loop_sdk.py URL`."""

import sys
from typing import Any

from checks import ANSWER, QUESTION, follow, key, main, model_of, said
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

CALL = {"name": "weather", "arguments": {"town": "Rome"}}


@tool
def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, name = url, model_of(url)
        self._models = {
            "chat": ChatOpenAI(model=name, base_url=f"{url}/v1", api_key=key()),
            "responses": ChatOpenAI(model=name, base_url=f"{url}/v1", api_key=key(), use_responses_api=True),
            "messages": ChatAnthropic(model=name, base_url=url, api_key=key(), max_tokens=64),
        }

    def chat(self) -> None:
        self._loop("chat")

    def responses(self) -> None:
        self._loop("responses")

    def anthropic(self) -> None:
        self._loop("messages")

    def anthropic_stream(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert "".join(part.text for part in self._models["messages"].stream(QUESTION)) == ANSWER

    def _loop(self, name: str) -> None:
        model = self._models[name].bind_tools([weather])
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode([weather]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        for streams in (False, True):
            follow(self._url, CALL, "It is wet.")
            state: Any = {"messages": [("user", QUESTION)]}
            turns = (
                list(graph.compile().stream(state, stream_mode="values"))[-1]
                if streams
                else graph.compile().invoke(state)
            )
            assert turns["messages"][-1].text == "It is wet."
            assert ANSWER in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "langgraph"))
