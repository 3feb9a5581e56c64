"""The `llm` command against a server: `python tests/clients/llm_cli.py BASE_URL`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import QUESTION, key, main, model_of

TOOL = """
def weather(town: str) -> str:
    "The weather in a town."
    return "It rains."
"""


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="splitfuse-"))
        model = {"model_name": model_of(url), "api_base": f"{url}/v1", "api_key_name": "splitfuse"}
        able = {"supports_schema": True, "supports_tools": True}
        models = [
            {"model_id": "chat", **model, **able},
            {"model_id": "text", **model, "completion": True},
            {"model_id": "responses", **model, **able, "responses": True},
        ]
        (self._home / "extra-openai-models.yaml").write_text(json.dumps(models))
        (self._home / "keys.json").write_text(json.dumps({"splitfuse": key()}))

    def chat(self) -> None:
        assert self._llm("-m", "chat", QUESTION, "-o", "max_tokens", "24").strip()

    def no_stream(self) -> None:
        assert self._llm("-m", "chat", "--no-stream", QUESTION, "-o", "max_tokens", "24").strip()

    def completion(self) -> None:
        assert self._llm("-m", "text", "Once upon a time", "-o", "max_tokens", "24").strip()

    def responses(self) -> None:
        assert self._llm("-m", "responses", QUESTION, "-o", "max_tokens", "24").strip()

    def conversation(self) -> None:
        assert self._llm("-c", "Why?", "-o", "max_tokens", "24").strip()

    def usage(self) -> None:
        self.chat()  # llm takes no usage from a response that max_tokens cut off
        assert json.loads(self._llm("logs", "--json", "-n", "1"))[0]["output_tokens"] > 0

    def schema(self) -> None:
        schema = '{"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}'
        answer = json.loads(self._llm("-m", "chat", "--schema", schema, QUESTION))  # the schema allows more properties
        assert isinstance(answer["wet"], bool)

    def tool_accepted(self) -> None:
        for model in ("chat", "responses"):
            self._llm("-m", model, "--functions", TOOL, QUESTION, "-o", "max_tokens", "60", "--cl", "3")

    def built_in_tool_accepted(self) -> None:
        self._llm("-m", "chat", "-T", "llm_time", "What time is it?", "-o", "max_tokens", "60", "--cl", "3")

    def errors(self) -> None:
        done = self._run("-m", "chat", "x " * 60_000)
        assert done.returncode != 0
        assert "maximum context length" in done.stderr

    def _llm(self, *words: str) -> str:
        done = self._run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "LLM_USER_PATH": str(self._home)}
        return subprocess.run(["llm", *words], env=env, capture_output=True, text=True, input="", check=False)


if __name__ == "__main__":
    sys.exit(main(Checks, "llm"))
