"""The `guidellm` command against a server: `python tests/clients/guidellm_cli.py BASE_URL`.

The folder of a tokenizer is in SPLITFUSE_TOKENIZER: nothing is fetched.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checks import key, main, model_of


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)
        self._folder = Path(tempfile.mkdtemp(prefix="splitfuse-"))

    def chat(self) -> None:
        self._check(self._report("/v1/chat/completions", key()))

    def completions(self) -> None:
        self._check(self._report("/v1/completions", key()))

    def wrong_key(self) -> None:
        if key() != "unused":
            totals = self._report("/v1/completions", "wrong", check="validate_backend=false")["metrics"][
                "request_totals"
            ]
            assert totals["successful"] == 0
            assert totals["errored"] >= 8

    def _check(self, benchmark: Any) -> None:
        totals = benchmark["metrics"]["request_totals"]
        assert totals["errored"] == 0
        assert totals["successful"] >= 8
        assert benchmark["metrics"]["time_to_first_token_ms"]["successful"]["mean"] > 0
        assert benchmark["metrics"]["output_token_count"]["successful"]["mean"] == 8

    def _report(self, route: str, api_key: str, *, check: str = "") -> Any:
        report = self._folder / f"report{len(list(self._folder.iterdir()))}.json"
        backend = f"kind=openai_http,target={self._url},model={self._name},request_format={route},api_key={api_key}"
        words = ["guidellm", "run", "--disable-console", "--backend", ",".join(filter(None, (backend, check)))]
        words += ["--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=8"]
        words += ["--tokenizer", f"kind=huggingface_auto,model={os.environ['SPLITFUSE_TOKENIZER']}"]
        words += ["--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"]
        words += ["--output", f"kind=json,path={report}"]
        env = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert report.exists(), done.stderr[-3000:] + done.stdout[-3000:]
        return json.loads(report.read_text())["benchmarks"][0]


if __name__ == "__main__":
    sys.exit(main(Checks, "guidellm"))
