"""The `instructor` package against a server: `python tests/clients/instructor_sdk.py BASE_URL`."""

import sys
from typing import Any, Literal

import instructor
import openai
from checks import QUESTION, key, main, model_of, raised
from instructor import Mode
from instructor.core.exceptions import InstructorRetryException
from pydantic import BaseModel


class Town(BaseModel):
    """A town."""

    town: Literal["Rome", "Oslo"]
    wet: bool


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key=key(), max_retries=0)
        self._url, self._model = url, model_of(url)

    def tools(self) -> None:
        assert isinstance(self._town(Mode.TOOLS), Town)

    def tools_strict(self) -> None:
        assert isinstance(self._town(Mode.TOOLS_STRICT), Town)

    def json_schema(self) -> None:
        assert isinstance(self._town(Mode.JSON_SCHEMA), Town)

    def responses_tools(self) -> None:
        client = instructor.from_openai(self._client, mode=Mode.RESPONSES_TOOLS)
        asked: Any = {"model": self._model, "response_model": Town, "max_retries": 0}
        assert isinstance(client.responses.create(input=QUESTION, **asked), Town)

    def partial_stream(self) -> None:
        parts = list(self._instructor(Mode.TOOLS).chat.completions.create_partial(**self._asked()))
        assert len(parts) > 1
        assert parts[-1].wet in (True, False)

    def with_completion(self) -> None:
        town, completion = self._instructor(Mode.TOOLS).chat.completions.create_with_completion(**self._asked())
        assert isinstance(town, Town)
        assert completion.usage.completion_tokens > 0

    def provider(self) -> None:
        where: Any = {"base_url": f"{self._url}/v1", "api_key": key()}
        client = instructor.from_provider(f"openai/{self._model}", **where)
        assert isinstance(client.chat.completions.create(**self._asked()), Town)

    def errors(self) -> None:
        asked = {**self._asked(), "model": "another"}
        error = raised(InstructorRetryException, lambda: self._instructor(Mode.TOOLS).chat.completions.create(**asked))
        assert "not served here" in str(error)

    def _town(self, mode: Mode) -> object:
        return self._instructor(mode).chat.completions.create(**self._asked())

    def _instructor(self, mode: Mode) -> Any:
        return instructor.from_openai(self._client, mode=mode)

    def _asked(self) -> dict[str, Any]:
        messages = [{"role": "user", "content": QUESTION}]
        return {"model": self._model, "messages": messages, "response_model": Town, "max_tokens": 80, "max_retries": 0}


if __name__ == "__main__":
    sys.exit(main(Checks, "instructor"))
