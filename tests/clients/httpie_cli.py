"""The `http` command against a scripted server: `python tests/clients/httpie_cli.py BASE_URL`."""

import json
import subprocess
import sys

from checks import ANSWER, QUESTION, follow, key, main, model_of


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)
        self._asked = (f"model={self._name}", "messages[0][role]=user", f"messages[0][content]={QUESTION}")

    def chat(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        answer = json.loads(self._http("--body", self._chats, *self._asked, "max_tokens:=20"))
        assert answer["choices"][0]["message"]["content"] == ANSWER

    def stream(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        lines = self._http("--body", "--stream", self._chats, *self._asked, "stream:=true").splitlines()
        parts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "".join(part["choices"][0]["delta"].get("content") or "" for part in parts) == ANSWER
        assert "data: [DONE]" in lines

    def errors(self) -> None:
        assert "not valid JSON" in self._http("--form", self._chats, "model=x", exit_code=4)
        assert "deflate" in self._http("--compress", "--compress", self._chats, *self._asked, exit_code=4)

    @property
    def _chats(self) -> str:
        return f"{self._url}/v1/chat/completions"

    def _http(self, *words: str, exit_code: int = 0) -> str:
        head = ("http", "--ignore-stdin", "--check-status", "--auth-type=bearer", f"--auth={key()}", "POST")
        options = [word for word in words if word.startswith("--")]
        rest = [word for word in words if not word.startswith("--")]
        done = subprocess.run(
            [*head[:-1], *options, head[-1], *rest], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout


if __name__ == "__main__":
    sys.exit(main(Checks, "httpie"))
