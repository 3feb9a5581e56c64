"""Tensor parallelism on several GPUs: answers beside those of one, time per token, and the loss of a rank.

    python tests/gpu/two_gpus.py answers|exact|figures|lost [--size 2] [--shape llama-3.1-8b] [--device cuda]

answers: the demo model in float32, step by step, asynchronously and from graphs; the three must agree, and with one GPU
in 98 % of the tokens. exact: with --exact no schedule changes a bit. figures: milliseconds per token with dummy
weights. lost: a rank is killed while steps run; the error must name it within 10 s. Exits with 1 if not. Rows go to
$OUT/ranks-NAME.json. On a CPU the ranks are processes that meet through gloo, and graphs do the work again.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paths

sys.path.insert(0, str(paths.HERE / "calls"))
from end_to_end import ALL_SHAPES
from exact import SCHEDULES
from exact import answers as exact_answers
from parity import PARAMS, PATHS, PLAIN, SETTINGS, agreement, answers

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import RankLostError
from splitfuse.engine.execution.runner.cuda_graphs import StepGraphs

Row = dict[str, Any]
NUM_REPLAYS = [0]


def count_replays() -> None:
    replay = StepGraphs.replay

    def counted(self: StepGraphs, *args: Any) -> Any:
        NUM_REPLAYS[0] += 1
        return replay(self, *args)

    StepGraphs.replay = counted  # type: ignore[method-assign]


def compare_answers(options: argparse.Namespace) -> Iterator[Row]:
    settings = {"device": options.device, **SETTINGS["float32"]}
    alone = {kind: answers({**settings, **PLAIN}, params)[0] for kind, params in PARAMS.items()}
    settings["tensor_parallel_size"] = options.size
    plain = {kind: answers({**settings, **PLAIN}, params)[0] for kind, params in PARAMS.items()}
    shares = {kind: agreement(plain[kind], alone[kind])[0] for kind in PARAMS}
    yield {"name": "one GPU", **shares, "is_good": min(shares.values()) >= 0.98}
    for name, path in PATHS.items():
        before = NUM_REPLAYS[0]
        shares = {
            kind: agreement(answers({**settings, **path}, params)[0], plain[kind])[0] for kind, params in PARAMS.items()
        }
        replays = NUM_REPLAYS[0] - before
        is_good = min(shares.values()) == 1.0 and bool(replays or name != "graphs")
        yield {"name": name, **shares, "replays": replays, "is_good": is_good}


def compare_schedules(options: argparse.Namespace) -> Iterator[Row]:
    is_gpu, first = options.device == "cuda", None
    dtype, num_prompts = ("bfloat16", 40) if is_gpu else ("float32", 6)
    for name, schedule in SCHEDULES.items():
        schedule = {**schedule, "tensor_parallel_size": options.size}
        found = exact_answers(dtype, is_exact=True, num_prompts=num_prompts, device=options.device, **schedule)
        first = first or found
        changed = sum(one != other for one, other in zip(found, first, strict=True)) / num_prompts
        yield {"name": name, "changed": changed, "is_good": not changed}


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Time 120 tokens more, so that neither prompts nor the start count."""
    few, many = (8, 128) if options.device == "cuda" else (2, 6)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(ALL_SHAPES[options.shape]))
        for size in (1, options.size):
            settings: Row = {"device": options.device, "load_format": "dummy", "dtype": "bfloat16"}
            with LLM(folder, tensor_parallel_size=size, max_model_len=2048, max_num_seqs=32, **settings) as llm:
                for num_rows in (1, 32):
                    prompts = [{"prompt_token_ids": [1 + row] * (64 if many > 100 else 4)} for row in range(num_rows)]
                    seconds = []
                    for num_tokens in (few, few, many):
                        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
                        start = time.perf_counter()
                        llm.generate(prompts, params)
                        seconds.append(time.perf_counter() - start)
                    milliseconds = (seconds[2] - seconds[1]) / (many - few) * 1e3
                    yield {"name": f"{size} GPUs, {num_rows} rows", "ms_per_token": milliseconds, "is_good": True}


def lose_a_rank(options: argparse.Namespace) -> Iterator[Row]:
    with LLM(device=options.device, dtype="float32", tensor_parallel_size=options.size, max_num_seqs=4) as llm:
        prompts, params = [{"prompt_token_ids": [5] * 40}], SamplingParams(max_tokens=400, ignore_eos=True)
        llm.generate(prompts, SamplingParams(max_tokens=2))
        process = llm.engine.pipeline._runner._runner.ranks._state._processes[-1]  # type: ignore[attr-defined]
        killed: list[float] = []

        def kill() -> None:
            killed.append(time.perf_counter())
            os.kill(process.pid, signal.SIGKILL)

        timer = threading.Timer(0.2, kill)
        timer.start()
        error = ""
        try:
            while not error:
                llm.generate(prompts, params)
        except RankLostError as exc:
            error = str(exc)
        seconds = time.perf_counter() - killed[0]
        yield {"name": error, "seconds": seconds, "is_good": "was ended by SIGKILL" in error and seconds < 10}


PARTS = {"answers": compare_answers, "exact": compare_schedules, "figures": measure, "lost": lose_a_rank}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--shape", choices=ALL_SHAPES, default="llama-3.1-8b")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.device == "cpu":
        from gloo_ranks import PATCH, use_gloo_ranks

        use_gloo_ranks(PATCH)
    count_replays()
    rows: list[Row] = []
    for row in PARTS[options.part](options):
        rows.append(row)
        print(f"ranks {options.part}: {row}", flush=True)
        path = Path(os.environ.get("OUT", "."), f"ranks-{options.part}.json")
        path.write_text(json.dumps(rows, indent=1))  # at once: the next row may hang
    return int(not all(row["is_good"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
