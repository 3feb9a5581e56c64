"""Third call: as users see it, over HTTP, in about 400 seconds, at most eight files in $OUT.

    python3 tests/gpu/calls/third.py [--model-file FILE.gguf] [--seconds 400] [--dry]

A real model (SmolLM2-135M-Instruct as GGUF) and its answers, Llama-3.1-8B's shape with dummy weights, gaps beside long
prompts, then formats, drafts, exact answers, swaps, adapters and a crash. The figures are printed again at the end.
Wheels of packages that the machine lacks are taken from .whl/, if that folder is there.
"""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path

from steps import GPU, ROOT, Steps, temporary

sys.path[:0] = [str(GPU), str(ROOT / "tests" / "support")]
PORTS = range(18_400, 18_500)
CLI = [sys.executable, "-m", "splitfuse.server"]
FIGURES = {  # of `bench serve --save-result`
    "completed": "answers", "failed": "failed", "output_throughput": "tokens/s", "mean_ttft_ms": "mean TTFT",
    "p99_ttft_ms": "P99 TTFT", "median_itl_ms": "median ITL", "p99_itl_ms": "P99 ITL",
}  # fmt: skip


class Call:
    """Servers one after another, and the checks of each."""

    def __init__(self, steps: Steps, folder: Path, model: str) -> None:
        self.steps, self.folder, self.model = steps, folder, model
        self._device = ["--device", "cpu"] if steps.is_dry else []
        (steps.folder / "figures.txt").unlink(missing_ok=True)
        self._port, self._pid = PORTS[0], 0
        self._seeds = count(1)  # a seed used before would meet its prompts in the prefix cache

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def model_arguments(self) -> Sequence[str]:
        return ["--model", self.model, "--served-model-name", "model"]

    @cached_property
    def shape_arguments(self) -> Sequence[str]:
        return of_shape(self.folder / "shape", "tiny" if self.steps.is_dry else "llama-3.1-8b")

    @contextmanager
    def server(self, name: str, *arguments: str, limit: float = 60) -> Iterator[bool]:
        """Run a server; the value is True if it became ready. Killed at the end."""
        self._port = _free_port()
        command = [*CLI, "serve", "--port", str(self._port), *arguments, *self._device]
        start = time.monotonic()
        with (self.steps.folder / "server.txt").open("a") as log:
            log.write(f"== {name}: {' '.join(command)}\n")
            log.flush()
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.steps.environment, stdout=log, stderr=log, start_new_session=True
            )
            self._pid = process.pid
            try:
                is_ready = _wait(process, self.url, min(limit, self.steps.left))
                seconds = time.monotonic() - start
                self.say(f"== {name}: {'ready' if is_ready else 'NOT READY'} after {seconds:.1f} s")
                self.steps.note(name, seconds, "ok" if is_ready else f"not ready ({process.poll()})")
                yield is_ready
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def bench(self, name: str, num_prompts: int, *lengths: int, rate: int = 0, limit: float = 45) -> None:
        """Send prompts of 1024 + 128 tokens, or of these lengths, all at once or so many a second."""
        if self.steps.is_dry:
            num_prompts, rate, lengths = 4, 0, (20, 8)
        saved = self.folder / "bench.json"
        saved.unlink(missing_ok=True)
        load = ["--num-prompts", str(num_prompts), "--request-rate", str(rate or "inf"), "--ignore-eos"]
        load += ["--seed", str(next(self._seeds)), "--save-result", str(saved)]
        for flag, length in zip(("--random-input-len", "--random-output-len"), lengths, strict=False):
            load += [flag, str(length)]
        before = self._meters()
        self.steps.run(name, *CLI, "bench", "serve", "--base-url", self.url, *load, limit=limit)
        if saved.exists():
            found, after = json.loads(saved.read_text()), self._meters()
            loop, client, gaps, num_gaps = (now - then for now, then in zip(after, before, strict=True))
            self.say(f"{name}: {', '.join(f'{text} {found[key]:.5g}' for key, text in FIGURES.items())}")
            self.say(
                f"{name}: the server's own mean ITL {1e3 * gaps / max(num_gaps, 1):.4g} ms; processor seconds of "
                f"{found['duration']:.1f}: its loop's thread {loop:.1f}, the client with its start {client:.1f}"
            )
            for error in sorted({error for error in found["errors"] if error})[:3]:
                self.say(f"{name}: {error}")

    def check(self, name: str, check: str, *arguments: str | Path, limit: float = 40) -> None:
        """Run a check of over_http.py."""
        dry = ["--dry"] if self.steps.is_dry else []
        self.steps.python(name, "calls/over_http.py", self.url, check, *map(str, arguments), *dry, limit=limit)

    def counters(self, name: str, *words: str) -> None:
        """Write the counters that have one of these words in their names."""
        found = [line for line in self._metrics() if line[:1] != "#" and any(word in line for word in words)]
        self.say(f"{name}: " + ", ".join(re.sub(r'model_name="[^"]*",?|splitfuse:|\.0$', "", line) for line in found))

    def _metrics(self) -> Sequence[str]:
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as response:
                return str(response.read(), "utf-8").splitlines()
        except OSError as exc:
            self.say(f"no metrics: {exc}")
            return []

    def _meters(self) -> Sequence[float]:
        """Return processor seconds of the server's first thread and of ended children, sum and number of all gaps."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        thread = Path(f"/proc/{self._pid}/task/{self._pid}/schedstat").read_text().split()[0]
        gaps = {
            line.partition("{")[0]: float(line.split()[-1])
            for line in self._metrics()
            if "inter_token_latency" in line and line[0] != "#"
        }
        ends = [gaps.get(f"splitfuse:inter_token_latency_seconds_{end}", 0.0) for end in ("sum", "count")]
        return [int(thread) / 1e9, children.ru_utime + children.ru_stime, *ends]

    def late_work(self, name: str) -> None:
        """Write the kernels compiled and the graphs captured while serving: both should be 0 or few."""
        self.counters(name, "kernels_compiled", "cuda_graphs_captured")

    def say(self, text: str) -> None:
        self.steps.say(text)
        with (self.steps.folder / "figures.txt").open("a") as file:
            file.write(text + "\n")


def _free_port() -> int:
    """Return a port that nobody listens on: a server that was left over would answer in another one's place."""
    for port in PORTS:
        with socket.socket() as own:
            if own.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise RuntimeError(f"no free port in {PORTS}")


def _wait(process: "subprocess.Popen[bytes]", url: str, limit: float) -> bool:
    end = time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=2):
                return True
        except OSError:
            time.sleep(0.1)
    return False


def of_shape(folder: Path, shape: str) -> Sequence[str]:
    """Return the arguments of a server with the shape's config.json, the demo's tokenizer and dummy weights.

    Most ids of Llama's vocabulary have no text in that tokenizer.
    """
    from end_to_end import ALL_SHAPES

    from splitfuse.engine.config.named_models import DEMO_FOLDER

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**ALL_SHAPES[shape], "vocab_size": 128_256}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (source := DEMO_FOLDER / name).exists():
            (folder / name).write_bytes(source.read_bytes())
    return ["--model", str(folder), "--load-format", "dummy"]


def adapters_of(folder: Path, model: str) -> Sequence[str]:
    """Write two adapters of the attention's output, one that adds nothing. Returns the arguments of a server."""
    import torch
    from tiny_adapters import save_adapter

    from splitfuse.engine.config.named_models import DEMO_FOLDER

    torch.manual_seed(0)
    config = json.loads((DEMO_FOLDER / "config.json").read_text())
    sizes = config if model == "demo" else {"hidden_size": 576, "num_hidden_layers": 30}  # SmolLM2-135M
    for name, size in (("same", 0.0), ("other", 0.1)):
        tensors = {}
        for layer in range(sizes["num_hidden_layers"]):
            linear = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
            tensors[f"{linear}.lora_A.weight"] = 0.1 * torch.randn(8, sizes["hidden_size"])
            tensors[f"{linear}.lora_B.weight"] = size * torch.randn(sizes["hidden_size"], 8)
        save_adapter(folder / name, tensors)
    return ["--enable-lora", "--lora-modules", *(f"{name}={folder / name}" for name in ("same", "other"))]


def main() -> None:
    steps = Steps(__doc__.splitlines()[0], seconds=400, model_file="GGUF of the real model; /tmp/smollm2.gguf")
    with temporary() as site, temporary() as folder:
        if (ROOT / ".whl").exists():
            wheels = [str(path) for path in sorted((ROOT / ".whl").glob("*.whl"))]
            options = ["-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", site]
            steps.run("wheels", sys.executable, "-m", "pip", "install", *options, *wheels, limit=60)
            steps.environment["PYTHONPATH"] += os.pathsep + site
        file = steps.paths["model_file"] or Path("/tmp/smollm2.gguf")
        call = Call(steps, Path(folder), str(file) if file.exists() and not steps.is_dry else "demo")
        if call.model == "demo":
            call.say(f"the real model is skipped, {file} is missing: --model-file FILE. In its place: demo")
        for part in PARTS:
            try:
                part(call)
            except Exception:
                call.say(f"{part.__name__}: {traceback.format_exc()}")
                steps.note(part.__name__, 0, "failed")
    steps.say("\n== figures\n" + (steps.folder / "figures.txt").read_text())
    steps.keep("figures.txt", "server.txt")


def real_model(call: Call) -> None:
    with call.server("real model", *call.model_arguments) as is_ready:
        if is_ready:
            call.check("answers", "answers", "--save", call.folder / "answers.json")
            call.bench("real model, 4 a second", 24, 256, 128, rate=4)
            call.bench("real model, 200 at once", 200, 256, 128)
            call.late_work("real model")


def shape(call: Call) -> None:
    with call.server("8B shape", *call.shape_arguments) as is_ready:
        if is_ready:
            call.bench("8B shape, 4 a second", 32, rate=4)
            call.bench("8B shape, 300 at once", 300, limit=60)
            call.check("gaps beside long prompts", "gaps")
            call.late_work("8B shape")


def formats(call: Call) -> None:
    kinds = [["--quantization", "fp8"], ["--kv-cache-dtype", "fp8"]]
    for kind in [["--quantization", "int8"]] if call.steps.is_dry else kinds:
        with call.server(f"8B shape {' '.join(kind)}", *call.shape_arguments, *kind) as is_ready:
            if is_ready:
                call.bench(f"8B shape {' '.join(kind)}, 300 at once", 300, limit=60)
                call.late_work(" ".join(kind))


def drafts(call: Call) -> None:
    with call.server("drafts by n-grams", *call.model_arguments, "--speculative-config", "ngram") as is_ready:
        if is_ready:
            call.check("answers with drafts", "answers", "--expect", call.folder / "answers.json")
            call.counters("drafts", "drafts_total", "draft_tokens_total", "accepted_tokens_total")


def exact(call: Call) -> None:
    with call.server("exact", *call.model_arguments, "--exact") as is_ready:
        if is_ready:
            call.check("exact beside other loads", "crowds")
            call.check("exact answers", "answers", "--save", call.folder / "exact.json")


def swaps(call: Call) -> None:
    swap = ["--swap-space", "2", "--preemption-mode", "swap", "--num-kv-blocks", "400", "--max-model-len", "1024"]
    with call.server("swaps", *call.model_arguments, *swap) as is_ready:
        if is_ready:
            call.bench("swaps, 100 at once", 100, 256, 128)
            call.counters("swaps", "num_preemptions")


def adapters(call: Call) -> None:
    arguments = adapters_of(call.folder / "adapters", call.model)
    with call.server("adapters", *call.model_arguments, *arguments) as is_ready:
        if is_ready:
            call.check("answers of adapters", "adapters", "model", "same", "other")


def results(call: Call) -> None:
    arguments = ["--results", str(call.folder / "results.db")]
    for name in ("results on disk", "results after kill -9"):
        with call.server(name, *call.model_arguments, *arguments) as is_ready:
            if is_ready:
                call.check(f"{name}: read", "kept", "--of", call.folder / "kept.json")


def exact_drafts(call: Call) -> None:
    arguments = ["--exact", "--speculative-config", "ngram"]
    with call.server("exact, with drafts", *call.model_arguments, *arguments) as is_ready:
        if is_ready:
            call.check("exact answers with drafts", "answers", "--expect", call.folder / "exact.json")


PARTS = (
    real_model,
    shape,
    formats,
    drafts,
    exact,
    swaps,
    adapters,
    results,
    exact_drafts,
)  # the most useful ones first


if __name__ == "__main__":
    main()
