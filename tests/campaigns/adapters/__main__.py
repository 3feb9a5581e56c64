"""`make adapters ADAPTERS=100`: adapters loaded, asked once and unloaded, while eight streams run.

No stream may wait longer than its longest wait without adapters plus 50 ms, every adapter must answer, and the memory
must come back. A machine that is busy with something else says nothing.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import httpx
import torch
from safetensors.torch import save_file
from served import Served

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.execution.models.registry import read_model_config
from splitfuse.engine.formats.checkpoint import model_folder

NUM_STREAMS = 8
MORE_S = 0.05  # allowed beyond a step
MORE_MB = 30  # memory that may stay: less than three adapters of SmolLM2
NUM_WARM = 5  # adapters before the memory is first read
NUM_BLOCKS = 128  # of the cache: few, because each takes memory when it is first used
RANK = 16


def save_weights(model: str, path: Path) -> None:
    """Write random matrices for every linear of a Llama."""
    config = read_model_config(model_folder(EngineConfig(model=model), model))
    heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, int(config.hf_config["intermediate_size"])
    shapes = {
        "self_attn.q_proj": (heads[0], hidden),
        "self_attn.k_proj": (heads[1], hidden),
        "self_attn.v_proj": (heads[1], hidden),
        "self_attn.o_proj": (hidden, heads[0]),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    tensors = {}
    for layer in range(config.num_layers):
        for name, (num_outputs, num_inputs) in shapes.items():
            stem = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{stem}.lora_A.weight"] = (torch.randn(RANK, num_inputs) * 0.02).bfloat16()
            tensors[f"{stem}.lora_B.weight"] = (torch.randn(num_outputs, RANK) * 0.02).bfloat16()
    save_file(tensors, path)


def save_adapters(model: str, folder: Path, count: int) -> list[Path]:
    """Write adapters that differ in their factor, and so in all that is kept; they share one file of weights."""
    save_weights(model, weights := folder / "weights")
    paths = []
    for number in range(count):
        paths.append(path := folder / f"a{number}")
        path.mkdir()
        os.link(weights, path / "adapter_model.safetensors")
        (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 1 + number / 100}))
    return paths


class Streams:
    """Endless streams, and the waits between their tokens."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.gaps: list[float] = []
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(NUM_STREAMS)]

    async def _run(self, number: int) -> None:
        body = {"prompt": f"Story {number}", "max_tokens": 100, "ignore_eos": True, "stream": True}
        while True:
            last = None
            async with self._client.stream("POST", "/generate", json=body) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        now = time.perf_counter()
                        if last is not None:
                            self.gaps.append(now - last)
                        last = now

    def check(self) -> None:
        """Raise the error of a stream that has ended."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def longest_alone(self, seconds: float) -> float:
        """Return the longest wait while nothing else happens."""
        self.gaps.clear()
        await asyncio.sleep(seconds)
        self.check()
        return max(self.gaps)

    async def close(self) -> None:
        """End the streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def use(client: httpx.AsyncClient, path: Path) -> None:
    """Load an adapter, ask it, and unload it."""
    name = path.name
    (await client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)})).raise_for_status()
    body = {"model": name, "prompt": "Hello", "max_tokens": 4}
    (await client.post("/v1/completions", json=body)).raise_for_status()
    (await client.post("/v1/unload_lora_adapter", json={"lora_name": name})).raise_for_status()


async def run(server: Served, paths: list[Path], seconds: float, *, may_wait: bool) -> list[str]:
    """Return what is wrong."""
    async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as client:
        for path in paths[:NUM_WARM]:
            await use(client, path)
        streams = Streams(client)
        await asyncio.sleep(1)
        alone = await streams.longest_alone(seconds)
        before = server.usage().rss_mb
        streams.gaps.clear()
        begin = time.perf_counter()
        for path in paths[NUM_WARM:]:
            await use(client, path)
        streams.check()
        beside, elapsed = max(streams.gaps), time.perf_counter() - begin
        again = await streams.longest_alone(seconds)
        await streams.close()
    server.until_idle()
    after = server.usage().rss_mb
    count = len(paths) - NUM_WARM
    print(f"{count} adapters in {elapsed:.1f} s; longest wait {1e3 * alone:.0f} and {1e3 * again:.0f} ms without them, "
          f"{1e3 * beside:.0f} ms with them; memory {before:.0f} -> {after:.0f} MiB", flush=True)  # fmt: skip
    wrong = []
    if beside > max(alone, again) + MORE_S and not may_wait:
        wrong.append(f"a stream waited {1e3 * beside:.0f} ms")
    if after > before + MORE_MB:
        wrong.append(f"{after - before:.0f} MiB stay")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--adapters", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--any-wait", action="store_true", help="a busy machine: streams may wait")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="splitfuse-adapters-"))
    try:
        paths = save_adapters(args.model, folder, args.adapters + NUM_WARM)
        settings = ("--model", args.model, "--enable-lora", "--max-loras", "4", "--num-kv-blocks", str(NUM_BLOCKS))
        with Served(*settings, is_forked=True) as server:
            wrong = asyncio.run(run(server, paths, args.seconds, may_wait=args.any_wait))
    finally:
        shutil.rmtree(folder)
    print("; ".join(wrong) or "nothing wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
