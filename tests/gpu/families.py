"""Every family and every format of weights: the GPU's greedy tokens and logprobs beside the CPU path's.

    python tests/gpu/families.py [--seconds 170] [--workers 14] [--only NAME ...] [--device cuda]

A case (family_cases.py) is a tiny checkpoint with random weights. In float32 its tokens must be the CPU's up to a near
tie, and its logprobs within 1e-3. In bfloat16 it must run, with finite logprobs and not far fewer of the float32 tokens
than the CPU's bfloat16 has. The GPU's engine has the settings that serve, with all of its graphs captured. Worker
processes take cases from one list: one that dies or hangs costs its case alone.

`--device interpreted` runs the GPU's kernels on a CPU under Triton's interpreter, few tokens and some 10 s a case;
`--device cpu` is a test of this script. $OUT/families.json has the rows as they come, $OUT/families.txt the bad ones
with their tracebacks, then a line for each. Exits with 1 if a case is bad; a refusal with a ConfigError is none. Wheels
of packages that a machine lacks (gguf, compressed-tensors and theirs) are taken from .whl/, if that folder is there.
"""

import argparse
import contextlib
import gc
import json
import logging
import math
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from paths import ROOT

LENGTHS = (1, 5, 33, 100, 17, 64)
NUM_TOKENS = 12
TOLERANCE = 1e-3  # of logprobs, and of the gap of a near tie
LIMITS: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "num_kv_blocks": 96, "num_threads": 1}
CHUNK = 48  # less than the longest prompts
# In bfloat16: of the share of float32's tokens that the CPU's bfloat16 has. Wrong logits have next to none.
LEAST_SHARE = 0.4
CASE_LIMIT_S = float(os.environ.get("FAMILY_CASE_LIMIT_S", "100"))
DTYPES = ("float32", "bfloat16")
PLAIN = {"async_scheduling": False, "enforce_eager": True}
# From bad to good: a case has the worst outcome of its runs.
BAD = ("died", "hangs", "failed", "differs")
OUTCOMES = (*BAD, "not run", "refused", "skipped", "near tie", "reported", "same", "runs")
OUT = Path(os.environ.get("OUT") or ".")
Row = dict[str, Any]


# A worker: takes names from its input.


def answers(case: Any, path: str, device: str, **settings: Any) -> tuple[list[Any], int]:
    """Return each prompt's TokenLogprobs, or vectors of a model that pools, and the number of replayed steps."""
    import random

    from captured import Replays

    from splitfuse.engine import LLM, SamplingParams
    from splitfuse.engine.execution.runner import launching

    launching.UNSEEN.clear()  # this script is what sees them
    choose, is_slow = random.Random(1), "TRITON_INTERPRET" in os.environ
    lengths, num_tokens = (LENGTHS[:3], 3) if is_slow else (LENGTHS, NUM_TOKENS)
    prompts = [{"prompt_token_ids": [choose.randrange(2, 250) for _ in range(length)]} for length in lengths]
    on_device: dict[str, Any] = {"device": "cuda", **case.on_gpu} if device == "cuda" else {"device": "cpu"}
    if device in ("cpu", "interpreted"):
        on_device["async_scheduling"] = True
    if not case.pools:
        on_device["max_num_batched_tokens"] = CHUNK
    with (
        _interpreted_kernels() if device == "interpreted" else contextlib.nullcontext(),
        LLM(path, **{**LIMITS, **case.options, **on_device, **settings}) as llm,
    ):
        if case.pools:
            outputs = [output.outputs for output in getattr(llm, case.pools)(prompts)]
            return [getattr(output, "embedding", None) or output.probs for output in outputs], 0
        replays = Replays(llm.engine.pipeline, llm.config) if case.has_graphs and _has_graphs(llm, device) else None
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=2)
        found = [list(output.outputs[0].logprobs or ()) for output in llm.generate(prompts, params)]
        return found, replays.count if replays else 0


@contextlib.contextmanager
def _interpreted_kernels() -> Iterator[None]:
    """Let a CPU's engine call a GPU's kernels."""
    import torch

    from splitfuse.engine.execution.models import resolved_model
    from splitfuse.kernels import ops
    from splitfuse.kernels.cuda import attention_decode, backend

    def resolve_dtype(name: str, *_: Any) -> Any:
        return getattr(torch, name)  # a CPU would compute float16 in float32

    def route(logits: Any, args: Any, slots: Any = None) -> Any:
        # A CPU's last layer has the rows alone that need logits, a GPU's all rows.
        return routed(logits, args, slots if slots is not None and len(slots) == len(logits) else None)

    routed = backend.route
    with (
        patch.dict(ops._BACKEND_OF_DEVICE, {"cpu": "cuda"}),
        patch.object(ops, "decode_planner", attention_decode.decode_planner),
        patch.object(backend, "route", route),
        patch.object(resolved_model, "resolve_dtype", resolve_dtype),
    ):
        yield


def _has_graphs(llm: Any, device: str) -> bool:
    launcher = llm.engine.pipeline.launcher
    if launcher is None or llm.config.enforce_eager:
        return False
    return launcher.graphs.mixed is not None if device == "cuda" else True


def compare(ours: list[Any], theirs: list[Any]) -> Row:
    """Return the outcome, the share of tokens before the first difference, and the logprobs' largest one up to there.

    A near tie: the CPU's best two logprobs are so near that its token is a matter of rounding.
    """
    agreed, most, difference, ties, outcome = 0, 0, 0.0, 0, "same"
    for tokens, expected in zip(ours, theirs, strict=True):
        most += len(expected)
        for mine, right in zip(tokens, expected, strict=True):
            if mine.token_id != right.token_id:
                is_tie = right.top[0][1] - right.top[1][1] < TOLERANCE
                ties += is_tie
                outcome = outcome if is_tie else "differs"
                break
            agreed += 1
            # NaN must not pass for the smaller one.
            gap = abs(mine.logprob - right.logprob)
            difference = max(difference, gap if math.isfinite(gap) else math.inf)
    if not difference < TOLERANCE:
        outcome = "differs"
    if ties and outcome == "same":
        outcome = "near tie"
    return {
        "outcome": outcome,
        "tokens": round(agreed / most, 4),
        "difference": float(f"{difference:.3g}"),
        "ties": ties,
    }


def compare_vectors(ours: list[Any], theirs: list[Any]) -> Row:
    gaps = [abs(a - b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)]
    difference = max(gap if math.isfinite(gap) else math.inf for gap in gaps)
    return {"outcome": "same" if difference < TOLERANCE else "differs", "difference": _short(difference)}


def _short(number: float) -> float:
    return float(f"{number:.3g}")


def run_on(
    case: Any, path: str, device: str, expected: list[Any], beside: list[Any] | None = None, **settings: Any
) -> tuple[Row, list[Any] | None]:
    """Run a case on the device, and compare it with the CPU's answers in float32, `expected`, or in the same dtype.

    Returns the answers, too.
    """
    from splitfuse.engine.errors import ConfigError

    start, found = time.monotonic(), None
    try:
        found, replays = answers(case, path, device, **settings)
    except ConfigError as exc:
        is_ours = "error id" not in str(exc)  # else the engine has caught an error of the model's
        row: Row = {"outcome": "refused" if is_ours else "failed", "error": str(exc)}
    except Exception:
        row = {"outcome": "failed", "error": traceback.format_exc()[-1500:]}
    else:
        compared = compare_vectors if case.pools else compare
        row = {**compared(found, expected), "replays": replays}
        if beside is not None and not case.pools:
            row["of CPU's"] = compared(found, beside)["tokens"]
        if row["outcome"] == "differs" and not case.is_exact and row["difference"] < math.inf:
            row["outcome"] = "reported"
    return {**row, "seconds": round(time.monotonic() - start, 1)}, found


def judge(row: Row, on_cpu: Row, *, is_exact: bool) -> None:
    """Change a bfloat16 run's outcome from the comparison with float32 to one beside the CPU's bfloat16."""
    if row["outcome"] in ("failed", "refused"):
        return
    is_near = row["difference"] < math.inf
    if is_near and is_exact and "tokens" in on_cpu:
        is_near = max(row["tokens"], row.get("of CPU's", 0.0)) >= LEAST_SHARE * on_cpu["tokens"]
    elif is_near and is_exact and "difference" in on_cpu:
        is_near = row["difference"] <= max(10 * on_cpu["difference"], TOLERANCE)
    row["outcome"] = "runs" if is_near else "differs"


class Errors(logging.Handler):
    """Errors that an engine logs and gets over, such as a graph that cannot be captured."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record)[-1500:])


def run_case(name: str, device: str, dtypes: list[str]) -> Row:
    """Make a case's files, and run it on the CPU, then on the device in each dtype."""
    from family_cases import cases
    from kernel_tests import LOST_CONTEXT

    case = cases()[name]
    if missing := [package for package in case.needs if find_spec(package) is None]:
        return {"outcome": "skipped", "error": f"needs {', '.join(missing)}"}
    errors, start = Errors(), time.monotonic()
    logging.getLogger("splitfuse").addHandler(errors)
    row: Row = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / case.path) if case.path else folder
        try:
            case.write(Path(folder))
            row["files"] = round(time.monotonic() - start, 1)
            expected, _ = answers(case, path, "reference", dtype="float32")
        except Exception:
            return {"outcome": "failed", "error": traceback.format_exc()[-1500:]}
        row["cpu"] = round(time.monotonic() - start - row["files"], 1)
        for dtype in dtypes:
            beside = None
            if dtype != "float32":
                row[f"CPU {dtype}"], beside = run_on(case, path, "reference", expected, dtype=dtype)
            # In case of a fault: is it one of kernels, or of the way that serves?
            for run, settings in ((dtype, {}), (f"{dtype}, plain", PLAIN)):
                row[run], _ = run_on(case, path, device, expected, beside, dtype=dtype, **settings)
                if dtype != "float32":
                    judge(row[run], row[f"CPU {dtype}"], is_exact=case.is_exact)
                if row[run]["outcome"] not in ("failed", "differs") or LOST_CONTEXT.search(str(row[run])):
                    break
            if LOST_CONTEXT.search(str(row[dtype])):
                break
    runs = [row[dtype]["outcome"] for dtype in dtypes if dtype in row]
    row["outcome"] = min(runs, key=OUTCOMES.index)
    if errors.texts and case.has_graphs:  # where no graph can be captured, the engine logs why
        row["outcome"], row["error"] = "failed", "logged: " + errors.texts[0]
    logging.getLogger("splitfuse").removeHandler(errors)
    return row


def work(device: str, dtypes: list[str]) -> None:
    """Answer each name in the input with a row, one a line; end after a CUDA error, behind which no call succeeds."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints
    import family_cases  # noqa: F401
    from kernel_tests import LOST_CONTEXT

    from splitfuse.engine import LLM  # noqa: F401

    pipe.write("{}\n")
    for line in sys.stdin:
        row = run_case(line.strip(), device, dtypes)
        ends = bool(LOST_CONTEXT.search(json.dumps(row)))
        pipe.write(json.dumps({**row, "ends": ends}) + "\n")
        if ends:
            os._exit(3)
        gc.collect()
        if device == "cuda":
            import torch

            torch.cuda.empty_cache()


# The starter of workers.


class Worker:
    """Process that runs cases; started again after it has died."""

    def __init__(self, options: list[str], environment: dict[str, str]) -> None:
        self._command = [sys.executable, str(Path(__file__).resolve()), "--work", *options]
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def row_of(self, name: str, deadline: float) -> Row:
        """Run a case. It may take CASE_LIMIT_S beside the start of a process."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._errors,
            )  # fmt: skip
            if self._answer(min(deadline, time.monotonic() + 120)) is None:
                return self._lost(deadline)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(name + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._lost(deadline)
        row = self._answer(min(deadline, time.monotonic() + CASE_LIMIT_S))
        if row is None:
            return self._lost(deadline)
        if row.pop("ends", False):
            self._end()
        return row

    def _answer(self, until: float) -> Row | None:
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], max(until - time.monotonic(), 0))[0]:
            return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def _lost(self, deadline: float) -> Row:
        """End a process that gives no answer."""
        assert self._process is not None
        is_late = time.monotonic() >= deadline
        try:
            status: int | None = self._process.wait(timeout=0 if is_late else 1)
        except subprocess.TimeoutExpired:
            status = None
        self._end()
        self._errors.seek(0)
        tail = self._errors.read()[-1500:]
        if status is None:
            return {"outcome": "not run" if is_late else "hangs", "error": tail}
        return {"outcome": "died", "error": f"status {status}\n{tail}"}

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None

    def close(self) -> None:
        """End the process."""
        self._end()
        self._errors.close()


class Rows:
    """Rows of finished cases, in the files of $OUT."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._rows: dict[str, Row] = {}
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._write()

    def add(self, name: str, row: Row) -> None:
        with self._lock:
            self._rows[name] = row
            if is_shown(row):
                print(line_of(name, row), flush=True)
            self._write()

    @property
    def is_good(self) -> bool:
        return bool(self._rows) and not any(row["outcome"] in BAD for row in self._rows.values())

    def summary(self) -> str:
        """Count the outcomes."""
        counts = Counter(self._rows[name]["outcome"] if name in self._rows else "not run" for name in self._names)
        counted = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        return f"families: {counted}; {len(self._names)} cases, {time.monotonic() - self._start:.0f} s"

    def _write(self) -> None:
        (OUT / "families.json").write_text(json.dumps({"summary": self.summary(), "rows": self._rows}, indent=1))
        bad = [f"{name}\n{json.dumps(row)}\n{_errors(row)}" for name, row in self._rows.items() if is_shown(row)]
        lines = [line_of(name, row) for name, row in self._rows.items()]
        (OUT / "families.txt").write_text("\n\n".join([self.summary(), *bad, "\n".join(lines)]) + "\n")


def is_shown(row: Row) -> bool:
    """True for what a reader wants to see first."""
    return row["outcome"] in (*BAD, "refused", "skipped")


def _errors(row: Row) -> str:
    runs = {"": row, **{name: run for name, run in row.items() if isinstance(run, dict)}}
    return "\n".join(f"{name}: {run['error']}" for name, run in runs.items() if run.get("error"))


def line_of(name: str, row: Row) -> str:
    """Return one line: outcome, seconds, then each run's share of tokens, largest difference of logprobs, replays."""
    parts = [f"{row['outcome']:9} {row.get('seconds', 0):5.1f} s  {name}:"]
    if "cpu" in row:
        parts.append(f"files {row['files']} s, CPU {row['cpu']} s")
    for run, found in row.items():
        if isinstance(found, dict):
            keys = ("outcome", "tokens", "of CPU's", "difference", "ties", "replays", "seconds")
            parts.append(f"| {run}: " + " ".join(f"{key} {found[key]}" for key in keys if found.get(key) is not None))
    if errors := _errors(row):
        parts.append("| " + errors.strip().splitlines()[-1][:200])
    return " ".join(parts)


def with_wheels(folder: str) -> dict[str, str]:
    """Return the environment of a process that finds .whl/'s packages behind the machine's own."""
    for path in sorted((ROOT / ".whl").glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder)
    return {**os.environ, "FAMILY_WHEELS": folder, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def run_all(names: list[str], options: argparse.Namespace, deadline: float) -> bool:
    """Run the cases in their order, until time is over."""
    rows = Rows(names)
    waiting: Iterator[str] = iter(names)
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as wheels:
        environment = with_wheels(wheels)
        if options.device == "interpreted":
            environment["TRITON_INTERPRET"] = "1"

        def take() -> None:
            worker = Worker(["--device", options.device, "--dtypes", *options.dtypes], environment)
            while time.monotonic() < deadline:
                with lock:
                    name = next(waiting, None)
                if name is None:
                    break
                start = time.monotonic()
                row = worker.row_of(name, deadline)
                rows.add(name, {**row, "seconds": round(time.monotonic() - start, 1)})
            worker.close()

        threads = [threading.Thread(target=take) for _ in range(min(options.workers, len(names)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(rows.summary(), flush=True)
    return rows.is_good


def main() -> int:
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "interpreted", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 14))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of cases, in this order")
    parser.add_argument("--list", action="store_true", help="print the names of all cases")
    parser.add_argument("--dtypes", nargs="+", default=None, help="float32 bfloat16; interpreted: float32, or float16")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.extend(filter(None, [os.environ.get("FAMILY_WHEELS")]))
    # Triton's interpreter has no bfloat16.
    options.dtypes = options.dtypes or DTYPES[: 1 if options.device == "interpreted" else 2]
    if options.work:
        work(options.device, options.dtypes)
        return 0
    from family_cases import cases

    known = list(cases())
    if options.list:
        print(*known, sep="\n")
        return 0
    if unknown := sorted(set(options.only or ()) - set(known)):
        parser.error(f"no cases: {', '.join(unknown)}; --list names them")
    return 0 if run_all(options.only or known, options, start + options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
