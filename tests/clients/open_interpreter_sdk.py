"""`open-interpreter` against a scripted server: `python tests/clients/open_interpreter_sdk.py BASE_URL`."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from checks import QUESTION, WET, follow, key, main, model_of, said
from interpreter import OpenInterpreter

CODE = "printf 'It rains.' > weather.txt && cat weather.txt"


class Checks:
    """Checks of the client, which runs code in a folder of its own: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)
        os.chdir(tempfile.mkdtemp(prefix="splitfuse-"))

    def functions(self) -> None:
        call = {"name": "execute", "arguments": {"language": "shell", "code": CODE}}
        self._loop(call, is_text=False)

    def blocks_of_text(self) -> None:
        self._loop(f"```shell\n{CODE}\n```", is_text=True)

    def _loop(self, step: Any, *, is_text: bool) -> None:
        """Code, its output, the answer, and another turn."""
        interpreter = self._interpreter(is_text=is_text)
        follow(self._url, step, WET, needs_tools=False)
        turns = interpreter.chat(QUESTION, display=False)
        assert turns[-1]["content"].strip() == WET, turns
        assert Path("weather.txt").read_text() == "It rains."
        assert "It rains." in said(self._url)[-1]
        follow(self._url, *["It is done."] * 9, needs_tools=False)
        assert interpreter.chat("And now?", display=False)[-1]["content"].strip() == "It is done."
        assert WET in said(self._url)[-1]
        Path("weather.txt").unlink()

    def _interpreter(self, *, is_text: bool) -> Any:
        interpreter = OpenInterpreter(auto_run=True, offline=True, disable_telemetry=True)
        interpreter.llm.model, interpreter.llm.api_base = f"openai/{self._name}", f"{self._url}/v1"
        interpreter.llm.api_key, interpreter.llm.supports_functions = key(), not is_text
        interpreter.llm.context_window, interpreter.llm.max_tokens = 30_000, 400
        return interpreter


if __name__ == "__main__":
    sys.exit(main(Checks, "open-interpreter"))
