"""Gain of speculation by drafter and load, beside plain decoding of equal tokens.

`python tests/bench/speculation.py WORKLOAD [--loads 1,4,16,64] [--rounds 3] [--methods ngram,draft] [--formula]`
WORKLOAD smollm2-records, -lists, -turns, -tools, -stories or -pages: `--methods ngram,suffix`, a real model's answers.

One process per engine, because two engines in one process disturb each other through their threads. Engines take turns,
round by round. All engines must give equal tokens, or the run fails (float32) or reports the difference (bfloat16).
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from suffix import prose, tool_calls

Job = dict[str, Any]
METHODS: dict[str, dict[str, Any] | None] = {  # suffix:0.1 sets the least probability of a drafted token
    "plain": None,
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "draft": {"model": "demo-draft"},
}


# ---------------------------------------------------------------- prompts, as text or ids


def _turn(question: str) -> str:
    return f"<|user|>\n{question}<|end|>\n<|assistant|>\n"


def stories(rng: random.Random) -> str:
    """Return stories to continue at temperature 0, the demo model's purpose; little repeats."""
    hero = rng.choice(["mouse", "fox", "sailor", "witch", "king", "cat", "dragon", "miller"])
    how = rng.choice(["brave", "sleepy", "tiny", "clever", "kind", "old", "curious"])
    return f"Once upon a time, there lived a {how} {hero} named {rng.choice(['Otto', 'Maya', 'Sam', 'Clara', 'Leo'])}"


def records(rng: random.Random) -> str:
    """Return JSON lists of similar records to continue, about 300 tokens."""
    names = ["Leo", "Maya", "Otto", "Clara", "Sam", "Nora", "Felix", "Ella"]
    colours = ["white", "black", "red", "grey", "brown"]
    items = [
        {"name": name, "age": rng.randint(1, 20), "colour": rng.choice(colours), "owner": rng.choice(names)}
        for name in rng.sample(names, 8)
    ]
    return _turn("Write a JSON list of cats.") + json.dumps(items, indent=1)[:-2] + ","


def lists(rng: random.Random) -> str:
    """Return questions for JSON, each about another thing, without an example to copy."""
    thing = rng.choice(["cats", "planets", "books", "rivers", "cars", "trees", "songs", "cities", "birds", "chairs"])
    return _chat(f"Write a JSON list of {rng.randint(3, 6)} {thing}, each with a name, a colour, a size and an owner.")


def turns(rng: random.Random) -> str:
    """Return one of six questions that an agent asks again and again."""
    file = rng.choice(["plan.py", "app.py", "errors.py", "main.c", "setup.cfg", "notes.txt"])
    return _chat(f"Write the JSON of a call of the tool read_file for {file}, and say what you do next.")


def tools(rng: random.Random) -> str:
    """Return an agent's text with two turns to copy from."""
    text = "The agent reads a file, then runs the tests. Each answer has two calls in JSON.\n\n"
    for _ in range(2):
        question, answer = tool_calls(rng)
        text += f"User: {question}Agent: {answer}\n\n"
    return f"{text}User: {tool_calls(rng)[0]}Agent:"


def pages(rng: random.Random) -> str:
    """Return half a page of this project's documents, which repeat little."""
    return prose(rng)[0]


def _chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def repetition(rng: random.Random) -> list[int]:
    """Return ids for a model with random weights, four times 64 tokens; such a model's greedy output soon loops."""
    passage = [rng.randrange(1000, 30000) for _ in range(64)]
    return passage * 4


WORKLOADS: dict[str, dict[str, Any]] = {
    "stories": {"prompt": stories, "max_tokens": 160, "engine": {}},
    "records": {"prompt": records, "max_tokens": 160, "engine": {}},
    "random-221m": {
        "prompt": repetition,
        "max_tokens": 96,
        "engine": {"shape": "llama-221m", "load_format": "dummy"},
    },
} | {
    f"smollm2-{prompt.__name__}": {"prompt": prompt, "max_tokens": 96, "engine": {"model": "smollm2"}}
    for prompt in (records, lists, turns, tools, stories, pages)
}


# ---------------------------------------------------------------- one engine in a process of its own


def counts(llm: Any) -> dict[str, Any]:
    """Return the drafter's counts, of which plain decoding has none."""
    return (llm.core.speculation and llm.core.speculation.to_dict()) or {}


def work(settings: dict[str, Any]) -> None:
    """Answer jobs, one JSON object a line, until the input ends."""
    import tempfile

    from splitfuse.engine import LLM, SamplingParams
    from splitfuse.engine.extras.bench.offline import SHAPES

    shape = settings.pop("shape", None)
    with tempfile.TemporaryDirectory() as folder:
        if shape:
            Path(folder, "config.json").write_text(json.dumps(SHAPES[shape]))
        model = folder if shape else settings.pop("model", None)
        llm = LLM(model, device="cpu", max_num_seqs=64, enable_prefix_caching=False, **settings)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            job = json.loads(line)
            params = SamplingParams(
                max_tokens=job["max_tokens"], temperature=job["temperature"], seed=1, ignore_eos=True
            )
            before = counts(llm)
            llm.core.scheduler._planner._max_num_seqs = job["load"]
            start = time.perf_counter()
            outputs = llm.generate(job["prompts"], params)
            seconds = time.perf_counter() - start
            after = counts(llm)
            tokens = [output.outputs[0].token_ids for output in outputs]
            decode = [output.outputs[0].metrics for output in outputs]
            decode_s = max(m.finished_time for m in decode) - max(m.first_token_time for m in decode)
            result = {"seconds": seconds, "decode_s": decode_s, "tokens": tokens, "before": before, "after": after}
            print(json.dumps(result), flush=True)


class Worker:
    """Engine in a process of its own."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def do(self, job: Job) -> dict[str, Any]:
        """Run a job to its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


# ---------------------------------------------------------------- measuring


def settings_of(name: str) -> dict[str, Any] | None:
    """Return a method's settings."""
    method, _, least = name.partition(":")
    settings = METHODS[method]
    return {**settings, "suffix_decoding_min_token_prob": float(least)} if settings and least else settings


def counted(answer: dict[str, Any], name: str) -> float:
    """Return the job's addition to one of the engine's counts."""
    return float(answer["after"].get(name, 0) - answer["before"].get(name, 0))


def table(workload: str, args: argparse.Namespace) -> None:
    """Print the speed of every method and load, beside plain decoding in interleaved rounds."""
    spec = WORKLOADS[workload]
    engine = {**spec["engine"], "dtype": args.dtype}
    methods = ["plain", *args.methods.split(",")]
    workers = {name: Worker({**engine, "speculative_config": settings_of(name)}) for name in methods}
    print(f"{workload}, {args.dtype}, temperature {args.temperature}, {spec['max_tokens']} new tokens each", flush=True)
    print(
        "| load | method | tokens/s | speed-up, median | least to most | all rounds | drafted | accepted "
        "| share of time drafting |"
    )
    print("|---:|---|---:|---:|---|---:|---:|---:|---:|")
    for load in map(int, args.loads.split(",")):
        rng = random.Random(load)
        rates: dict[str, list[float]] = {name: [] for name in methods}
        drafts = {name: [0.0, 0.0, 0.0, 0.0] for name in methods}
        for number in range(args.rounds + 1):
            prompts = [spec["prompt"](rng) for _ in range(args.turns * load)]
            job = {"load": load, "prompts": prompts, "max_tokens": spec["max_tokens"], "temperature": args.temperature}
            tokens = None
            for name in methods if number % 2 else reversed(methods):
                answer = workers[name].do(job)
                if tokens is not None and tokens != answer["tokens"]:
                    print(f"tokens differ: {name}", file=sys.stderr)
                    assert args.dtype != "float32"
                tokens = answer["tokens"]
                if number:  # the first round warms up, and teaches the engine the cost of steps
                    rates[name].append(sum(map(len, tokens)) / answer["seconds"])
                    counts = ("num_draft_tokens", "num_accepted_tokens", "draft_s")
                    parts = [*(counted(answer, count) for count in counts), answer["seconds"]]
                    drafts[name] = [a + b for a, b in zip(drafts[name], parts, strict=True)]
        for name in methods:
            ratios = sorted(a / b for a, b in zip(rates[name], rates["plain"], strict=True))
            drafted, accepted, draft_s, seconds = drafts[name]
            share = f"{accepted / drafted:.2f}" if drafted else ""
            print(
                f"| {load} | {name} | {statistics.median(rates[name]):.0f} | {statistics.median(ratios):.2f} "
                f"| {ratios[0]:.2f} to {ratios[-1]:.2f} | {drafts['plain'][3] / seconds:.2f} "
                f"| {drafted:.0f} | {share} | {draft_s / seconds:.1%} |",
                flush=True,
            )
    for worker in workers.values():
        worker.stop()


def formula(workload: str, args: argparse.Namespace) -> None:
    """Print the draft model's speed-up at batch 1 and fixed lengths, beside (1 - a^(g+1)) / ((1 - a)(g c + 1))."""
    spec = WORKLOADS[workload]
    engine = {**spec["engine"], "dtype": args.dtype}
    plain = Worker({**engine, "speculative_config": None})
    print("| g | a | c | predicted | measured | of it |\n|---:|---:|---:|---:|---:|---:|", flush=True)
    for g in map(int, args.lengths.split(",")):
        config = {"model": "demo-draft", "num_speculative_tokens": g, "adaptive": False}
        worker = Worker({**engine, "speculative_config": config})
        rng, measured, costs = random.Random(0), [], []
        accepted = rejected = 0.0
        for number in range(args.rounds + 1):
            job = {"load": 1, "prompts": [spec["prompt"](rng)], "max_tokens": 400, "temperature": args.temperature}
            base, answer = plain.do(job), worker.do(job)
            assert base["tokens"] == answer["tokens"] or args.dtype != "float32"
            if not number:
                continue
            measured.append(base["decode_s"] / answer["decode_s"])
            step_s = base["decode_s"] / (len(base["tokens"][0]) - 1)
            costs.append(counted(answer, "draft_s") / counted(answer, "num_draft_tokens") / step_s)
            whole = (
                answer["after"]["num_accepted_tokens_per_pos"][-1] - answer["before"]["num_accepted_tokens_per_pos"][-1]
            )
            accepted += counted(answer, "num_accepted_tokens")
            rejected += counted(answer, "num_drafts") - whole
        a, c, speedup = accepted / (accepted + rejected), statistics.median(costs), statistics.median(measured)
        predicted = (1 - a ** (g + 1)) / ((1 - a) * (g * c + 1))
        print(f"| {g} | {a:.3f} | {c:.3f} | {predicted:.2f} | {speedup:.2f} | {speedup / predicted:.2f} |", flush=True)
        worker.stop()
    plain.stop()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", choices=WORKLOADS, default="stories")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--methods", default="ngram,draft")
    parser.add_argument("--loads", default="1,4,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3, help="requests one after the other in each slot")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--formula", action="store_true", help="the draft model beside the formula")
    parser.add_argument("--lengths", default="1,2,3,4,5", help="draft lengths for --formula")
    args = parser.parse_args()
    if args.worker is not None:
        work(args.worker)
    elif args.formula:
        formula(args.workload, args)
    else:
        table(args.workload, args)


if __name__ == "__main__":
    main()
