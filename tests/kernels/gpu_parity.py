"""The bundled demo model on the card against the CPU path: the same tokens in float32, near logprobs, then the rest.

    python tests/kernels/gpu_parity.py [--device cuda]

Float32 must agree token for token, greedy and drawn; what is rounded differently (bfloat16, a cache of e4m3) is
reported as the share of tokens up to the first that differs. Exits with 1 where float32 disagrees.
"""

import argparse
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from splitfuse.engine import LLM, SamplingParams

NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1)
DRAWN = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=7, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1
)
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "int8": {"dtype": "float32", "quantization": "int8"},
    "int4": {"dtype": "float32", "quantization": "int4"},
    "bfloat16": {"dtype": "bfloat16"},
    "e4m3 cache": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
}
EXACT = ("float32",)


def answers(device: str, settings: dict[str, Any], params: SamplingParams) -> list[tuple[list[int], list[float]]]:
    """(tokens, their logprobs) of prompts of many lengths, more of them than run at once."""
    choose = random.Random(1)
    prompts = [[choose.randrange(1, 250) for _ in range(length)] for length in (1, 2, 5, 17, 33, 64, 100, 150, 200, 31)]
    llm = LLM(device=device, max_num_batched_tokens=96, max_num_seqs=6, max_model_len=256, num_kv_blocks=96, **settings)
    outputs = [output.outputs[0] for output in llm.generate([{"prompt_token_ids": p} for p in prompts], params)]
    return [(each.token_ids, [entry.logprob for entry in each.logprobs or ()]) for each in outputs]


def compare(name: str, device: str) -> dict[str, Any]:
    settings = SETTINGS[name]
    on_cpu = {key: value for key, value in settings.items() if key != "kv_cache_dtype"}
    row: dict[str, Any] = {"name": name}
    for kind, params in (("greedy", GREEDY), ("drawn", DRAWN)):
        ours, theirs = answers(device, settings, params), answers("cpu", on_cpu, params)
        agreed, difference = 0, 0.0
        for (tokens, logprobs), (expected, near) in zip(ours, theirs, strict=True):
            differ = [index for index in range(NUM_TOKENS) if tokens[index] != expected[index]]
            same = differ[0] if differ else NUM_TOKENS
            agreed += same
            difference = max([difference, *(abs(a - b) for a, b in zip(logprobs[:same], near[:same], strict=True))])
        row[kind] = agreed / (NUM_TOKENS * len(ours))
        row[f"{kind} logprobs"] = difference
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    rows = []
    names = SETTINGS if options.device == "cuda" else EXACT  # the CPU beside itself: a test of this script
    for name in names:
        rows.append(compare(name, options.device))
        shown = ", ".join(f"{key} {value:.4g}" for key, value in rows[-1].items() if key != "name")
        print(f"parity {name}: {shown}", flush=True)
    good = all(row["greedy"] == row["drawn"] == 1.0 for row in rows if row["name"] in EXACT)
    path = Path(os.environ.get("OUT", ".")) / "bench-parity.json"
    path.write_text(json.dumps({"good": good, "rows": rows}, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
