"""The `litellm` proxy in front of a scripted server: `python tests/clients/litellm_proxy_cli.py BASE_URL`."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from checks import ANSWER, CALL, QUESTION, WET, follow, key, main, model_of, said

USER = {"role": "user", "content": QUESTION}
PARAMETERS = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
SECONDS = 240
MASTER_KEY = "sk-" + "0123456789abcdef" * 4  # for the proxy alone


class Checks:
    """Checks of the client, whose proxy ends with this process: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, name = url, model_of(url)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        models = {
            "vllm": {"model": f"hosted_vllm/{name}", "api_base": f"{url}/v1", "api_key": key()},
            "openai": {"model": f"openai/{name}", "api_base": f"{url}/v1", "api_key": key()},
            "anthropic": {"model": f"anthropic/{name}", "api_base": url, "api_key": key()},
        }
        listed = [{"model_name": name, "litellm_params": params} for name, params in models.items()]
        self._home = tempfile.TemporaryDirectory(prefix="splitfuse-")
        config = Path(self._home.name, "config.yaml")
        config.write_text(json.dumps({"model_list": listed}))
        env = {"PATH": os.environ["PATH"], "HOME": self._home.name, "NO_PROXY": "127.0.0.1"}
        env |= {"LITELLM_LOCAL_MODEL_COST_MAP": "true", "LITELLM_MASTER_KEY": MASTER_KEY}
        words = ["litellm", "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
        self._log = Path(self._home.name, "log")
        with self._log.open("wb") as log:
            self._proxy = subprocess.Popen(words, env=env, cwd=self._home.name, stdout=log, stderr=log)
        self._at = f"http://127.0.0.1:{port}"
        self._wait()

    def __del__(self) -> None:
        self._proxy.kill()

    def chat(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        for model in ("vllm", "openai", "anthropic"):
            answer = self._post("/v1/chat/completions", model=model, messages=[USER])
            assert answer["choices"][0]["message"]["content"] == ANSWER, model

    def messages(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        for model in ("anthropic", "vllm"):
            answer = self._post("/v1/messages", model=model, messages=[USER], max_tokens=64)
            assert answer["content"][0]["text"] == ANSWER, model

    def responses(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert self._post("/v1/responses", model="openai", input=QUESTION)["output"][-1]["content"][0]["text"] == ANSWER

    def tool_and_its_result(self) -> None:
        tools = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
        for model in ("vllm", "anthropic"):
            follow(self._url, CALL, WET)
            asked: Any = {"model": model, "tools": tools}
            call = self._post("/v1/chat/completions", messages=[USER], **asked)["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": ANSWER}
            answer = self._post("/v1/chat/completions", messages=[USER, call, result], **asked)
            assert answer["choices"][0]["message"]["content"] == WET, model
            assert ANSWER in said(self._url)[-1]

    def _post(self, path: str, **body: Any) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {MASTER_KEY}"}
        asked = urllib.request.Request(self._at + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return json.load(answer)

    def _wait(self) -> None:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self._proxy.poll() is None:
            try:
                urllib.request.urlopen(f"{self._at}/health/liveliness", timeout=2).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise AssertionError(self._log.read_text()[-2000:])


if __name__ == "__main__":
    sys.exit(main(Checks, "litellm"))
