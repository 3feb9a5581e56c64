"""Parity of tokens: the bundled demo model on the GPU against the CPU path, and serving steps against plain steps.

    python tests/gpu/parity.py [--device cuda] [--tokens 24]

Float32 must agree token for token, greedy, sampled and with changed logits: step by step, asynchronously, from CUDA
graphs, and with logprobs on the CPU. Differently rounded runs (bfloat16, a cache of e4m3) are reported as the share
of tokens up to the first difference. Exits with 1 if float32 disagrees. $OUT/bench-parity.json is written after
each comparison.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paths  # noqa: F401
from captured import Replays

from splitfuse.engine import LLM, SamplingParams

NUM_TOKENS = 24
PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True),
    "sampled": SamplingParams(
        temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=7, max_tokens=NUM_TOKENS, ignore_eos=True
    ),
}
# Fields for serving steps: changes of logits with the last token on the device alone, and reads of logits.
PATH_PARAMS = {
    **PARAMS,
    "changed": SamplingParams(
        repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.1, logit_bias={30: 5.0},
        stop_token_ids=[7, 8], min_tokens=NUM_TOKENS, logprobs=3, seed=7, max_tokens=NUM_TOKENS,
    ),
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "int8": {"dtype": "float32", "quantization": "int8"},
    "int4": {"dtype": "float32", "quantization": "int4"},
    "bfloat16": {"dtype": "bfloat16"},
    "fp8": {"dtype": "bfloat16", "quantization": "fp8"},
    "e4m3 cache": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
}
PLAIN = {"async_scheduling": False, "enforce_eager": True}
PATHS = {"asynchronous": {"async_scheduling": True, "enforce_eager": True}, "graphs": {"async_scheduling": True}}
Answers = list[tuple[list[int], list[float]]]


def answers(settings: dict[str, Any], params: SamplingParams, *, graphs: bool = False) -> tuple[Answers, int]:
    """Return (tokens, logprobs) of prompts of many lengths, more than run at once, and the number of replayed steps."""
    choose = random.Random(1)
    prompts = [[choose.randrange(1, 250) for _ in range(length)] for length in (1, 2, 5, 17, 33, 64, 100, 150, 200, 31)]
    llm = LLM(max_num_batched_tokens=96, max_num_seqs=6, max_model_len=256, num_kv_blocks=96, **settings)
    replays = Replays(llm.engine.pipeline, llm.config) if graphs else None
    outputs = [output.outputs[0] for output in llm.generate([{"prompt_token_ids": p} for p in prompts], params)]
    found = [(list(output.token_ids), [entry.logprob for entry in output.logprobs or ()]) for output in outputs]
    return found, replays.count if replays else 0


def agreement(ours: Answers, theirs: Answers) -> tuple[float, float]:
    """Return (share of tokens before the first difference, largest difference of logprobs up to there)."""
    agreed, most, difference = 0, 0, 0.0
    for (tokens, logprobs), (expected, near) in zip(ours, theirs, strict=True):
        same = next((i for i, pair in enumerate(zip(tokens, expected, strict=True)) if pair[0] != pair[1]), len(tokens))
        agreed, most = agreed + same, most + len(tokens)
        difference = max([difference, *(abs(a - b) for a, b in zip(logprobs[:same], near[:same], strict=True))])
    return agreed / most, difference


def compare_paths(device: str) -> Iterator[dict[str, Any]]:
    """Compare serving steps with plain steps on one device."""
    settings = {"device": device, **SETTINGS["float32"]}
    plain = {kind: answers({**settings, **PLAIN}, params)[0] for kind, params in PATH_PARAMS.items()}
    for name, path in PATHS.items():
        row: dict[str, Any] = {"name": name, "is_exact": True, "replays": 0}
        for kind, params in PATH_PARAMS.items():
            ours, replays = answers({**settings, **path}, params, graphs=name == "graphs")
            row[kind] = agreement(ours, plain[kind])[0]
            row["replays"] += replays
        yield row


def compare_devices(device: str) -> Iterator[dict[str, Any]]:
    """Compare the device with the CPU, with logprobs. The CPU against itself is a test of this script."""
    for name in SETTINGS if device == "cuda" else ("float32",):
        settings = SETTINGS[name]
        on_cpu = {key: value for key, value in settings.items() if key != "kv_cache_dtype"}
        row: dict[str, Any] = {"name": name, "is_exact": name == "float32"}
        for kind, params in PARAMS.items():
            with_logprobs = replace(params, logprobs=1)
            ours, _ = answers({"device": device, **settings}, with_logprobs)
            theirs, _ = answers({"device": "cpu", **on_cpu}, with_logprobs)
            row[kind], row[f"{kind} logprobs"] = agreement(ours, theirs)
        yield row


def is_good(row: dict[str, Any]) -> bool:
    is_same = all(row.get(kind, 1.0) == 1.0 for kind in PATH_PARAMS) and bool(row["name"] != "graphs" or row["replays"])
    return is_same or not row["is_exact"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="of an answer; few under a sanitizer")
    options = parser.parse_args()
    for params in (PARAMS, PATH_PARAMS):
        least = {"min_tokens": options.tokens}
        params |= {
            kind: replace(of_kind, max_tokens=options.tokens, **(least if of_kind.min_tokens else {}))
            for kind, of_kind in params.items()
        }
    rows: list[dict[str, Any]] = []
    path = Path(os.environ.get("OUT", ".")) / "bench-parity.json"
    for comparison in (compare_paths, compare_devices):
        for row in comparison(options.device):
            rows.append(row)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in row.items() if key not in ("name", "is_exact"))
            print(f"parity {row['name']}: {shown}", flush=True)
            path.write_text(json.dumps({"good": all(map(is_good, rows)), "rows": rows}, indent=1))
    return 0 if all(map(is_good, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
