"""Tokens per step of n-gram and suffix drafts over recorded texts, without a model: `python tests/bench/suffix.py`.

Every step drafts as many tokens as allowed; accepted are those that the text goes on with. Nothing here depends on the
machine but the drafter's time.
"""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.extras.spec_decode.ngram import NgramDrafter
from splitfuse.engine.extras.spec_decode.suffix import SuffixDrafter
from splitfuse.engine.text.tokenizer import Tokenizer

_NAMES = ["Leo", "Maya", "Otto", "Clara", "Sam", "Nora", "Felix", "Ella"]
_FILES = ["src/plan.py", "src/app.py", "src/errors.py"]
Turn = tuple[str, str]  # prompt and answer


def records(rng: random.Random) -> Turn:
    """JSON lists of the same fields with other values."""
    items = [{"name": rng.choice(_NAMES), "age": rng.randint(1, 20), "owner": rng.choice(_NAMES)} for _ in range(6)]
    return "Write a JSON list of cats.\n", json.dumps(items, indent=1)


def tool_calls(rng: random.Random) -> Turn:
    """An agent's turn: it reads a file and runs the tests."""
    file, last = rng.choice(_FILES), rng.choice([50, 100, 200])
    read = json.dumps({"tool": "read_file", "arguments": {"path": file, "start_line": 1, "end_line": last}})
    run = json.dumps({"tool": "run", "arguments": {"command": "python -m pytest -q", "timeout": rng.choice([60, 120])}})
    question = f"Fix the bug in {file} number {rng.randint(1, 99)}.\n"
    return question, f"I will look at the file first.\n{read}\nThen I run the tests:\n{run}"


def prose(rng: random.Random) -> Turn:
    """Text that repeats little: words of this file's folder, each in its place."""
    texts = sorted((Path(__file__).parents[2] / "server/docs").glob("*.md"))
    text = rng.choice(texts).read_text()
    start = rng.randrange(max(1, len(text) - 1600))
    return text[start : start + 800], text[start + 800 : start + 1600] or "."


def workloads() -> Iterator[tuple[str, list[Turn]]]:
    """Yield names and turns."""
    rng = random.Random(5)
    yield "JSON records", [records(rng) for _ in range(40)]
    yield "tool calls", [tool_calls(rng) for _ in range(60)]
    some = [tool_calls(rng) for _ in range(6)]
    yield "the same turns again", some * 8
    yield "pages of documentation", [prose(rng) for _ in range(30)]


def replayed(drafter: Any, turns: list[Turn], tokenizer: Tokenizer, *, most: int) -> dict[str, float]:
    """Replay turns; return tokens a step, acceptance, and the drafter's microseconds a step."""
    num_steps = num_tokens = num_accepted = num_drafted = 0
    seconds = 0.0
    for number, (prompt, answer) in enumerate(turns):
        token_ids = tokenizer.encode(answer, add_special_tokens=False)
        request = Request(
            request_id=str(number),
            prompt_token_ids=tokenizer.encode(prompt),
            params=SamplingParams(),
            max_num_tokens=10**6,
            seed=0,
        )
        position = 1
        request.token_ids.append(token_ids[0])
        while position < len(token_ids):
            begin = time.perf_counter()
            draft = drafter.draft({request: most}).get(request, [])
            seconds += time.perf_counter() - begin
            rest = token_ids[position:]
            pairs = zip(draft, rest, strict=False)
            count = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(draft), len(rest)))
            request.token_ids.extend(rest[: count + 1])
            position += count + 1
            num_steps, num_tokens = num_steps + 1, num_tokens + min(count + 1, len(rest))
            num_accepted, num_drafted = num_accepted + count, num_drafted + len(draft)
        begin = time.perf_counter()
        drafter.forget(request)
        seconds += time.perf_counter() - begin
    return {
        "tokens a step": num_tokens / num_steps,
        "acceptance": num_accepted / max(1, num_drafted),
        "us a step": 1e6 * seconds / num_steps,
    }


def main() -> None:
    """Print one line for each workload and drafter."""
    tokenizer = Tokenizer(DEMO_FOLDER)
    for name, turns in workloads():
        for method, most in (("ngram", 8), ("suffix", 8), ("suffix", 32)):
            drafter: Any = NgramDrafter(min_n=2, max_n=8)
            if method == "suffix":
                drafter = SuffixDrafter(
                    max_tree_depth=64, max_cached_tokens=2**18, max_spec_factor=2.0, min_token_prob=0.5
                )
            found = replayed(drafter, turns, tokenizer, most=most)
            figures = "  ".join(f"{label} {value:6.2f}" for label, value in found.items())
            print(f"{name:24} {method:7} {most:2}  {figures}")


if __name__ == "__main__":
    main()
