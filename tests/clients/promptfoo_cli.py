"""The `promptfoo` command against a scripted server: `python tests/clients/promptfoo_cli.py BASE_URL`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checks import ANSWER, QUESTION, follow, key, main, model_of


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)

    def evaluations(self) -> None:
        openai: Any = {"apiBaseUrl": f"{self._url}/v1", "apiKey": key()}
        providers = [
            {"id": f"openai:{api}:{self._name}", "config": openai} for api in ("chat", "responses", "completion")
        ]
        anthropic = {"apiBaseUrl": self._url, "apiKey": key(), "max_tokens": 64}
        providers.append({"id": f"anthropic:messages:{self._name}", "config": anthropic})
        follow(self._url, ANSWER, needs_tools=False)
        results = self._evaluated(providers)
        assert len(results) == len(providers)
        assert [one["response"].get("output") for one in results] == [ANSWER] * len(providers), results
        assert all(one["success"] for one in results)

    def _evaluated(self, providers: list[Any]) -> list[Any]:
        tests = [{"assert": [{"type": "contains", "value": "rains"}]}]
        with tempfile.TemporaryDirectory(prefix="splitfuse-") as folder:
            Path(folder, "promptfooconfig.yaml").write_text(
                json.dumps({"prompts": [QUESTION], "providers": providers, "tests": tests})
            )
            env = {"HOME": folder, "PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1"}
            env |= {f"PROMPTFOO_DISABLE_{name}": "1" for name in ("TELEMETRY", "UPDATE", "REMOTE_GENERATION")}
            words = ["promptfoo", "eval", "--no-cache", "--output", "results.json"]
            done = subprocess.run(
                words, cwd=folder, env=env, input="", capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            results: list[Any] = json.loads(Path(folder, "results.json").read_text())["results"]["results"]
        return results


if __name__ == "__main__":
    sys.exit(main(Checks, "promptfoo"))
