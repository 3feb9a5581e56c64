"""The `aiperf` command against a server: `python tests/clients/aiperf_cli.py BASE_URL`.

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

# Seconds: on a busy machine aiperf's processes took longer than its default to start and import transformers.
LIMITS = ("DATASET_CONFIGURATION", "SERVICE_PROFILE_CONFIGURE", "SERVICE_REGISTRATION")
PATIENCE = {f"AIPERF_{name}_TIMEOUT": "1200" for name in LIMITS}


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)

    def chat_streamed(self) -> None:
        report = self._report("chat", "--streaming")
        assert report["request_count"]["avg"] == 8
        assert report["time_to_first_token"]["avg"] > 0

    def completions(self) -> None:
        assert self._report("completions")["request_count"]["avg"] == 8

    def _report(self, kind: str, *more: str) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(prefix="splitfuse-"))
        words = ["aiperf", "profile", "--model", self._name, "--url", self._url, "--endpoint-type", kind, *more]
        words += ["--api-key", key(), "--tokenizer", os.environ["SPLITFUSE_TOKENIZER"]]
        words += ["--request-count", "8", "--concurrency", "4"]
        words += ["--synthetic-input-tokens-mean", "16", "--output-tokens-mean", "8", "--ui", "none"]
        words += ["--artifact-dir", str(folder / "out"), "--workers-max", "1"]
        # with HF_HUB_OFFLINE, aiperf would look for the folder in the hub's cache
        env = {**os.environ, **PATIENCE}
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
        reports = list((folder / "out").rglob("profile_export_aiperf.json"))
        assert reports, done.stdout[-3000:] + done.stderr[-3000:]
        report: dict[str, Any] = json.loads(reports[0].read_text())
        return report


if __name__ == "__main__":
    sys.exit(main(Checks, "aiperf"))
