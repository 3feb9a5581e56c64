"""The `inspect-ai` package against a server: `python tests/clients/inspect_ai_sdk.py BASE_URL`."""

import sys
import tempfile
from itertools import groupby
from typing import Any, Literal

from checks import ANSWER, QUESTION, key, main, model_of
from inspect_ai import Task
from inspect_ai import eval as run_eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, Model, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel


class Town(BaseModel):
    """A town."""

    town: Literal["Rome", "Oslo"]


@tool
def weather() -> Tool:
    async def execute(town: Literal["Rome", "Oslo"]) -> str:
        """The weather in a town.

        Args:
            town: its name
        """
        return ANSWER

    return execute


class Checks:
    """Checks: one method per check, run in this order. An evaluation forces the first call of its tool, no other."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)
        self._logs = tempfile.mkdtemp(prefix="splitfuse-")

    def evaluations(self) -> None:
        for provider in ("openai-api/splitfuse", "vllm"):
            log = self._log(self._model(provider), generate())
            assert log.status == "success", log.error
            assert log.stats.model_usage[f"{provider}/{self._name}"].output_tokens > 0

    def tool_and_its_result(self) -> None:
        solver = [use_tools(weather(), tool_choice="any"), generate(tool_calls="single"), self._auto(), generate()]
        log = self._log(self._model("openai-api/splitfuse"), *solver)
        assert log.status == "success", log.error
        roles = [role for role, _ in groupby(message.role for message in log.samples[0].messages)]  # maybe two calls
        assert roles[:4] == ["user", "assistant", "tool", "assistant"]

    def response_schema(self) -> None:
        shape = ResponseSchema(name="town", json_schema=json_schema(Town))
        log = self._log(self._model("openai-api/splitfuse", response_schema=shape), generate())
        Town.model_validate_json(log.samples[0].output.completion)

    def errors(self) -> None:
        model = get_model("openai-api/splitfuse/another", base_url=f"{self._url}/v1", api_key=key())
        log = self._log(model, generate())
        assert log.status == "error"
        assert "not served here" in log.error.message

    def _auto(self) -> Any:
        return use_tools(weather(), tool_choice="auto")

    def _model(self, provider: str, **fields: Any) -> Model:
        config = GenerateConfig(**{"max_tokens": 60, "temperature": 0, "max_retries": 0, **fields})
        return get_model(f"{provider}/{self._name}", base_url=f"{self._url}/v1", api_key=key(), config=config)

    def _log(self, model: Model, *solver: Any) -> Any:
        task = Task([Sample(QUESTION, target="rain")], solver=list(solver), scorer=includes(), message_limit=8)
        return run_eval(task, model=model, log_dir=self._logs, display="none")[0]


if __name__ == "__main__":
    sys.exit(main(Checks, "inspect-ai"))
