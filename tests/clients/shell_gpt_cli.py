"""The `sgpt` command against a scripted server: `python tests/clients/shell_gpt_cli.py BASE_URL`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import ANSWER, CALL, QUESTION, WET, follow, key, main, model_of, said

FUNCTION = '''
from pydantic import BaseModel


class Function(BaseModel):
    """Tell the weather in a town."""

    town: str

    @classmethod
    def execute(cls, town: str) -> str:
        return "It rains."

    @classmethod
    def openai_schema(cls) -> dict:
        schema = cls.model_json_schema()
        about = {"name": "weather", "description": cls.__doc__, "parameters": schema}
        return {"type": "function", "function": about}
'''


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)
        self._home = tempfile.mkdtemp(prefix="splitfuse-")
        folder = Path(self._home, "functions")
        folder.mkdir()
        (folder / "weather.py").write_text(FUNCTION)

    def chat(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert ANSWER in self._sgpt("--no-functions", QUESTION)

    def code(self) -> None:
        follow(self._url, "print(1)", needs_tools=False)
        assert self._sgpt("--no-functions", "--code", QUESTION).strip() == "print(1)"

    def session(self) -> None:
        follow(self._url, ANSWER, WET, needs_tools=False)
        assert ANSWER in self._sgpt("--no-functions", "--chat", "weather", QUESTION)
        assert WET in self._sgpt("--no-functions", "--chat", "weather", "And now?")
        assert ANSWER in said(self._url)[-1]

    def tool_and_its_result(self) -> None:
        follow(self._url, CALL, WET)
        assert WET in self._sgpt("--functions", QUESTION)
        assert ANSWER in said(self._url)[-1]

    def _sgpt(self, *words: str) -> str:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": self._home,
            "TMPDIR": self._home,
            "OPENAI_API_KEY": key(),
            "API_BASE_URL": f"{self._url}/v1",
            "DEFAULT_MODEL": self._name,
            "OPENAI_FUNCTIONS_PATH": f"{self._home}/functions",
            "PRETTIFY_MARKDOWN": "false",
        }
        command = ["sgpt", "--no-cache", "--no-interaction", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, input="", timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


if __name__ == "__main__":
    sys.exit(main(Checks, "shell-gpt"))
