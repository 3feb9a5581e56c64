"""The `lm_eval` command against a server: `python tests/clients/lm_eval_cli.py BASE_URL`.

The folder of a tokenizer is in SPLITFUSE_TOKENIZER: nothing is fetched.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import key, main, model_of

ROWS = [
    {"text": "Rome is in", "answers": [" Italy", " Norway"], "right": 0},
    {"text": "Oslo is in", "answers": [" Italy", " Norway"], "right": 1},
]
TASK = {"dataset_path": "json", "test_split": "test", "doc_to_text": "text"}
METRIC = {"metric_list": [{"metric": "acc"}]}
EXACT = {"metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]}
TASKS = {
    "choice": {"output_type": "multiple_choice", "doc_to_choice": "answers", "doc_to_target": "right", **METRIC},
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [{"metric": "word_perplexity"}],
    },
    "generate": {
        "output_type": "generate_until",
        "doc_to_target": "{{answers[right]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16},
        **EXACT,
    },
}


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)
        self._folder = Path(tempfile.mkdtemp(prefix="splitfuse-"))
        rows = self._folder / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        for name, task in TASKS.items():
            data = {"dataset_kwargs": {"data_files": {"test": str(rows)}}}
            (self._folder / f"{name}.yaml").write_text(json.dumps({"task": name, **TASK, **data, **task}))

    def token_ids(self) -> None:
        results = self._results("choice,rolling,generate", "num_concurrent=2")
        assert 0 <= results["choice"]["acc,none"] <= 1
        assert results["rolling"]["word_perplexity,none"] > 1

    def strings(self) -> None:
        assert "generate" in self._results("choice,generate", "tokenized_requests=False")

    def chat(self) -> None:
        assert "generate" in self._results("generate", kind="chat-completions")

    def errors(self) -> None:
        done = self._run("generate", "completions", "max_retries=1,model=another")
        assert done.returncode != 0
        assert "404" in done.stderr + done.stdout

    def _results(self, tasks: str, more: str = "", *, kind: str = "completions") -> dict[str, dict[str, float]]:
        done = self._run(tasks, kind, f"model={self._name},{more}".rstrip(","))
        assert done.returncode == 0, done.stderr[-3000:]
        newest = max(self._folder.rglob("results_*.json"), key=lambda path: path.stat().st_mtime_ns)
        results: dict[str, dict[str, float]] = json.loads(newest.read_text())["results"]
        return results

    def _run(self, tasks: str, kind: str, more: str) -> "subprocess.CompletedProcess[str]":
        route = {"completions": "completions", "chat-completions": "chat/completions"}[kind]
        where = f"base_url={self._url}/v1/{route},tokenizer={os.environ['SPLITFUSE_TOKENIZER']},{more}"
        words = ["lm_eval", "run", "--model", f"local-{kind}", "--model_args", where, "--tasks", tasks]
        words += ["--include_path", str(self._folder), "--output_path", str(self._folder / "out")]
        words += ["--apply_chat_template"] if kind == "chat-completions" else []
        env = {**os.environ, "OPENAI_API_KEY": key(), "HF_HUB_OFFLINE": "1"}
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main(Checks, "lm_eval"))
