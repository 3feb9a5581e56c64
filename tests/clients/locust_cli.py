"""The `locust` command against a server: `python tests/clients/locust_cli.py BASE_URL`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checks import key, main, model_of

LOCUSTFILE = """
from gevent import spawn
from locust import HttpUser, constant, task

HEADERS = {"Authorization": "Bearer KEY"}
CHAT = {"model": "MODEL", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}

class User(HttpUser):
    wait_time = constant(0)
    num_rounds = 0

    @task
    def everything(self):
        self.chat(), self.stream(), self.submit_and_poll(), self.wrong_key()
        User.num_rounds += 1
        if User.num_rounds == 24:
            spawn(self.environment.runner.quit)  # which waits for the end of all users

    def chat(self):
        self.client.post("/v1/chat/completions", json=CHAT, headers=HEADERS)

    def stream(self):
        asked = {"json": {**CHAT, "stream": True}, "headers": HEADERS}
        with self.client.post("/v1/chat/completions", **asked, stream=True, catch_response=True) as got:
            if b"data: [DONE]" not in list(got.iter_lines()):
                got.failure("the stream has no end")

    def submit_and_poll(self):
        job = self.client.post("/generate", json={"prompt": "Once", "max_tokens": 8}, headers=HEADERS).json()
        self.client.get(job["result_url"] + "?wait=30", headers=HEADERS, name="/result")

    def wrong_key(self):
        wrong = {"x-api-key": "no"}
        with self.client.post("/generate", json={"prompt": "x"}, headers=wrong, catch_response=True) as got:
            got.success() if got.status_code == 401 else got.failure(got.status_code)
"""


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        folder = Path(tempfile.mkdtemp(prefix="splitfuse-"))
        (folder / "locustfile.py").write_text(LOCUSTFILE.replace("KEY", key()).replace("MODEL", model_of(url)))
        words = ["locust", "--headless", "--users=8", "--spawn-rate=8", f"--host={url}", "--json"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        self._log, self._rows = done.stderr, self._parsed(done.stdout)

    def every_route_was_asked(self) -> None:
        names = {row["name"] for row in self._rows}
        assert names == {"/generate", "/result", "/v1/chat/completions"}, f"{names}: {self._log[-3000:]}"

    def no_failure(self) -> None:
        assert sum(row["num_failures"] for row in self._rows) == 0, self._log

    def _parsed(self, text: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(text[text.index("[") :])
        return rows


if __name__ == "__main__":
    sys.exit(main(Checks, "locust"))
