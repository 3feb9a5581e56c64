"""First token of a known prompt after a restart: cold, from `--prefix-cache-dir`, and by llama.cpp's saved state.

`python tests/bench/prefix_disk.py [--model smollm2] [--tokens 2000] [--rounds 5] [--llama-python PYTHON]`

Every measurement is a process of its own, by turns. `--llama-python`: an interpreter with llama-cpp-python; its model
is the GGUF file of `--gguf`. Also: the time of new prompts with and without the folder, of which none is found there.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_LLAMA = """
import json, pickle, sys, time
from llama_cpp import Llama
job = json.loads(sys.argv[1])
llm = Llama(job["gguf"], n_ctx=4096, n_threads=job["threads"], verbose=False, logits_all=False)
llm.eval([5, 6, 7]); llm.reset()
begin = time.perf_counter()
if job["is_warm"]:
    with open(job["state"], "rb") as file:
        llm.load_state(pickle.load(file))
    llm.n_tokens = len(job["prompt"]) - 1
    llm.eval(job["prompt"][-1:])
else:
    llm.eval(job["prompt"])
token = llm.sample(temp=0.0)
seconds = time.perf_counter() - begin
if not job["is_warm"]:
    with open(job["state"], "wb") as file:
        pickle.dump(llm.save_state(), file)
print(json.dumps({"seconds": seconds, "token": token}))
"""


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompt in this process; with a folder, that of the disk."""
    from splitfuse.engine import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5, ignore_eos=True)
    settings = {"prefix_cache_dir": job["folder"]} if job["folder"] else {}
    with LLM(job["model"], device="cpu", max_model_len=4096, num_threads=job["threads"], **settings) as llm:
        llm.generate([[5, 6, 7]], params)
        begin = time.perf_counter()
        (output,) = llm.generate([job["prompt"]], params)
        seconds = time.perf_counter() - begin
        new = [[token ^ 1 for token in job["prompt"][shift:]] for shift in (1, 2, 3)]
        begin = time.perf_counter()
        llm.generate(new, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
        new_seconds = time.perf_counter() - begin
    first = output.outputs[0]
    num_computed = len(job["prompt"]) - output.num_cached_tokens
    answer = [list(first.token_ids), repr(first.logprobs)]
    return {"seconds": seconds, "answer": answer, "num_computed": num_computed, "new_seconds": new_seconds}


def in_a_process(*command: str) -> dict[str, Any]:
    """Run a command, whose last line is JSON."""
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def main() -> None:
    """Measure by turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-python")
    parser.add_argument("--gguf")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(measure(json.loads(options.job))))
        return
    rng = random.Random(1)
    job = {
        "model": options.model,
        "threads": options.threads,
        "prompt": [rng.randrange(1000) for _ in range(options.tokens)],
    }
    seconds: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            runs = [("cold", ""), ("first", folder), ("warm", folder)]
            found = {
                name: in_a_process(sys.executable, __file__, "--job", json.dumps({**job, "folder": where}))
                for name, where in runs
            }
            assert found["warm"]["answer"] == found["cold"]["answer"], "other tokens or logprobs"
            assert found["warm"]["num_computed"] <= 32
            for name in found:
                seconds.setdefault(name, []).append(found[name]["seconds"])
            for name in ("cold", "first"):
                seconds.setdefault(f"new prompts, {name}", []).append(found[name]["new_seconds"])
            if options.llama_python:
                for name, is_warm in (("llama.cpp cold", False), ("llama.cpp load_state", True)):
                    llama = {**job, "gguf": options.gguf, "state": str(Path(folder, "state")), "is_warm": is_warm}
                    run = in_a_process(options.llama_python, "-c", _LLAMA, json.dumps(llama))
                    seconds.setdefault(name, []).append(run["seconds"])
    for name, all_seconds in seconds.items():
        print(f"{name:24} {1000 * statistics.median(all_seconds):8.1f} ms  {[round(1000 * s) for s in all_seconds]}")
    for warm, cold in (("warm", "cold"), ("new prompts, first", "new prompts, cold")):
        pairs = [one / other for one, other in zip(seconds[warm], seconds[cold], strict=True)]
        print(f"{warm} / {cold}: {statistics.median(pairs):.3f}, least {min(pairs):.3f}, most {max(pairs):.3f}")


if __name__ == "__main__":
    main()
