"""Third call: as users see it, over HTTP. Ten minutes, at most eight files in $OUT.

    python3 tests/gpu/calls/third.py [--seconds 580] [--dry]

The demo model at three rates, a kill and a restart, Llama-3.1-8B's shape with dummy weights, then other formats.
Wheels of packages that the machine lacks are taken from .whl/, if that folder is there.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from steps import GPU, ROOT, Steps, temporary

sys.path.insert(0, str(GPU))
PORT = 18_400
URL = f"http://127.0.0.1:{PORT}"
CLI = [sys.executable, "-m", "splitfuse.server"]


@contextmanager
def server(steps: Steps, name: str, *arguments: str, limit: float = 60) -> Iterator[bool]:
    """Run a server; the value is True if it became ready. Killed at the end."""
    command = [*CLI, "serve", "--port", str(PORT), *arguments]
    start = time.monotonic()
    with (steps.folder / "server.txt").open("a") as log:
        log.write(f"== {name}: {' '.join(command)}\n")
        log.flush()
        process = subprocess.Popen(
            command, cwd=ROOT, env=steps.environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            is_ready = _wait(process, min(limit, steps.left))
            steps.say(f"\n== {name}: {'ready' if is_ready else 'NOT READY'} after {time.monotonic() - start:.1f} s")
            steps.note(name, time.monotonic() - start, "ok" if is_ready else f"not ready ({process.poll()})")
            yield is_ready
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", limit: float) -> bool:
    end = time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{URL}/ready", timeout=2):
                return True
        except OSError:
            time.sleep(0.2)
    return False


def bench(steps: Steps, name: str, *arguments: str, rate: str = "inf", limit: float = 60) -> None:
    """Send 500 requests at once, or those of eight seconds."""
    num_prompts = 6 if steps.is_dry else 500 if rate == "inf" else 8 * int(rate)
    load = ["--num-prompts", str(num_prompts), "--request-rate", rate, "--ignore-eos", *arguments]
    steps.run(name, *CLI, "bench", "serve", "--port", str(PORT), *load, limit=limit)


def late_work(steps: Steps, name: str) -> None:
    """Note the kernels compiled and the graphs captured while serving: both should be 0 or few."""
    with urllib.request.urlopen(f"{URL}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    wanted = [line for line in lines if "kernels_compiled" in line or "cuda_graphs_captured" in line]
    steps.say("\n".join(f"{name}: {line}" for line in wanted if not line.startswith("#")))


def of_shape(folder: Path, shape: str) -> Sequence[str]:
    """Return the arguments of a server with the shape's config.json, the demo's tokenizer and dummy weights.

    Most ids of Llama's vocabulary have no text in that tokenizer.
    """
    from end_to_end import ALL_SHAPES

    from splitfuse.engine.config.named_models import DEMO_FOLDER

    (folder / "config.json").write_text(json.dumps({**ALL_SHAPES[shape], "vocab_size": 128_256}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (source := DEMO_FOLDER / name).exists():
            (folder / name).write_bytes(source.read_bytes())
    return ["--model", str(folder), "--load-format", "dummy"]


def main() -> None:
    steps = Steps(__doc__.splitlines()[0], seconds=580)
    with temporary() as site:
        take_calls(steps, site)


def take_calls(steps: Steps, site: str) -> None:
    if (ROOT / ".whl").exists():
        wheels = [str(path) for path in sorted((ROOT / ".whl").glob("*.whl"))]
        options = ["-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", site]
        steps.run("wheels", sys.executable, "-m", "pip", "install", *options, *wheels, limit=60)
        steps.environment["PYTHONPATH"] += os.pathsep + site
    device = ["--device", "cpu"] if steps.is_dry else []
    small = ["--random-input-len", "20", "--random-output-len", "8"] if steps.is_dry else []
    with server(steps, "demo", "--model", "demo", "--log-steps", *device) as is_ready:
        for rate in ("inf",) if steps.is_dry else ("10", "50", "inf"):
            if is_ready:
                bench(steps, f"demo at {rate}", *small, rate=rate)
        if is_ready:
            late_work(steps, "demo")
    with server(steps, "demo after a kill", "--model", "demo", *device):
        pass
    with temporary() as folder:
        shape = of_shape(Path(folder), "tiny" if steps.is_dry else "llama-3.1-8b")
        with server(steps, "8B shape", *shape, *device, limit=120) as is_ready:
            for rate in ("inf",) if steps.is_dry else ("4", "inf"):
                if is_ready:
                    bench(steps, f"8B shape at {rate}", *small, rate=rate, limit=120)
            if is_ready:
                late_work(steps, "8B shape")
    kinds = [["--quantization", "int8"], ["--quantization", "int4"], ["--quantization", "fp8"]]
    kinds += [["--kv-cache-dtype", "fp8"], ["--swap-space", "8", "--num-kv-blocks", "400"], ["--exact"]]
    for kind in kinds[:1] if steps.is_dry else kinds:
        with server(steps, " ".join(kind), "--model", "demo", *kind, *device) as is_ready:
            if is_ready:
                bench(steps, f"demo {' '.join(kind)}", *small)
    steps.keep("server.txt")


if __name__ == "__main__":
    main()
