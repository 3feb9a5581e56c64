"""Engine on the GPU with dummy weights: time per token, throughput, prefill and gaps, beside the roofline.

    python tests/gpu/end_to_end.py SHAPE --copy GB/S --matmul TFLOP/S [--quantization int4] [--kv-cache-dtype fp8]
    [--device cpu --scale 16]

CUDA graphs are captured before timing, and a figure has its number of replayed steps. Lines come as they
are measured, and go to $OUT/SHAPE.json, or to ./bench-SHAPE.json, at once. The roofline is max(bytes of
weights over the copy's bandwidth, operations over the matmul's rate) plus the bytes of keys and values.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import paths  # noqa: F401
from captured import Replays, without_rehearsal
from predictions import H100_COPY
from switches import SWITCHES, without

from splitfuse.engine import EngineConfig, SamplingParams
from splitfuse.engine.config import ResolvedConfig
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.extras.bench.offline import SHAPES
from splitfuse.engine.serving.builder import EngineParts, load

ALL_SHAPES = {
    **SHAPES,
    "tiny": {**SHAPES["llama-40m"], "num_hidden_layers": 2, "vocab_size": 500},
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": False, "dtype": "bfloat16",
    },
}  # fmt: skip
ALL_SHAPES["tiny-mixture"] = {
    **ALL_SHAPES["qwen3-30b-a3b"], "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "vocab_size": 500,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, ignore_eos=True)  # the filter deals its work out
H100_MATMUL = 798e12  # the goals' GPU


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    roofline: float = 0.0  # in the unit of `value`
    goal: float = 0.0
    met: bool | None = None
    replays: int = 0  # steps that replayed CUDA graphs
    steps: int = 0  # all steps; 0: a figure without steps

    def __str__(self) -> str:
        share = ""
        if self.roofline:
            best = self.roofline / self.value if self.unit == "ms" else self.value / self.roofline
            share = f"{best:6.1%} of the roofline {self.roofline:.6g}"
        goal = "" if self.met is None else f"{'meets' if self.met else 'MISSES'} {self.goal:.6g}"
        replays = f" {self.replays} of {self.steps} steps replayed" if self.steps else ""
        return f"{self.name:34} {self.value:12.6g} {self.unit:9} {share:32} {goal}{replays}"


class Model:
    """Model's sizes for the roofline."""

    def __init__(self, shape: dict[str, Any], *, copy: float, matmul: float) -> None:
        heads, kv_heads, dim = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
        hidden, inner, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
        self._layers, self._expert = layers, 3 * hidden * shape.get("moe_intermediate_size", 0)
        self._num_experts, self._top_k = shape.get("num_experts", 0), shape.get("num_experts_per_tok", 0)
        mlp = self._top_k * self._expert or 3 * hidden * inner
        self.layer_weights = layers * (hidden * dim * (2 * heads + 2 * kv_heads) + mlp)  # of one token
        self.weights = self.layer_weights + hidden * shape["vocab_size"]
        self.kv_bytes = 4 * layers * kv_heads * dim
        self.score_flops = 4 * layers * heads * dim
        self.copy, self.matmul = copy, matmul

    def decode_s(self, num_rows: int, context: float) -> float:
        weights = max(2 * self._weights_read(num_rows) / self.copy, 2 * num_rows * self.weights / self.matmul)
        return weights + num_rows * context * self.kv_bytes / self.copy

    def _weights_read(self, num_rows: int) -> float:
        """Return the weights that this many rows read, if every expert is as likely."""
        if not self._num_experts:
            return self.weights
        hit = self._num_experts * (1 - (1 - self._top_k / self._num_experts) ** num_rows)
        return self.weights + self._layers * (hit - self._top_k) * self._expert

    def prefill_flops(self, num_tokens: int) -> float:
        return 2 * self.layer_weights * num_tokens + self.score_flops * num_tokens**2 / 2


class Run:
    """Run of requests through an engine core, with timed steps."""

    def __init__(self, parts: EngineParts, config: ResolvedConfig) -> None:
        self._parts, self._config = parts, config
        self._pipeline = replace(parts, config=config).pipeline()
        self._core = self._pipeline.core
        self._replays: Replays | None = None
        self.num_steps = 0
        self._num_added = 0
        self._random = Random(0)

    @property
    def core(self) -> EngineCore:
        return self._core

    def capture(self, sizes: Iterable[int] | None = None) -> None:
        """Capture CUDA graphs for these numbers of rows, or for all."""
        self._replays = Replays(self._pipeline, self._config, sizes)

    @property
    def counts(self) -> dict[str, int]:
        return {"replays": self._replays.count if self._replays else 0, "steps": self.num_steps}

    def add(self, prompt_len: int, output_len: int, params: SamplingParams = GREEDY) -> str:
        params = replace(params, max_tokens=output_len)
        vocab_size = self._parts.runner.loaded.model_config.vocab_size
        prompt = [self._random.randrange(vocab_size) for _ in range(prompt_len)]
        tokenized = self._parts.input_processor._tokenize({"prompt_token_ids": prompt}, params)
        self._num_added += 1
        request_id = str(self._num_added)
        self._core.add(self._parts.input_processor.requests(request_id, tokenized, now=time.monotonic()))
        return request_id

    def steps(self) -> Iterator[tuple[float, list[str]]]:
        """Yield (end of a step, requests that got a token) until all have ended. Raises a failed request's error."""
        while self._pipeline.has_work:
            deltas = self._pipeline.step().deltas
            self.num_steps += 1
            for delta in deltas:
                if delta.error is not None:
                    raise delta.error
            yield time.perf_counter(), [delta.request_id for delta in deltas if delta.token_ids]

    def finish(self) -> None:
        for _ in self.steps():
            pass


class EndToEnd:
    def __init__(
        self,
        name: str,
        model: Model,
        folder: Path,
        *,
        device: str,
        scale: int,
        quantization: str | None = None,
        kv_cache_dtype: str = "auto",
        save: Callable[[list[Figure]], object] = lambda figures: None,
    ) -> None:
        self.name, self.model, self.scale, self._save = name, model, scale, save
        self.quantization, self.kv_cache_dtype = quantization, kv_cache_dtype
        self.figures: list[Figure] = []
        self._is_rehearsed = False
        self._config = EngineConfig(
            model=str(folder), load_format="dummy", quantization=quantization, kv_cache_dtype=kv_cache_dtype,
            device=device, async_scheduling=True, max_num_seqs=max(4, 256 // scale),
            max_num_batched_tokens=8192 // scale, max_model_len=9216 // scale, enable_prefix_caching=False,
            num_kv_blocks=None if scale == 1 else 400,
        )  # fmt: skip
        start = time.perf_counter()
        self._parts = load(self._config)
        run = self.run()
        dtype = str(self._parts.runner.loaded.dtype).removeprefix("torch.")
        self._note(f"load, dummy weights in {dtype}", time.perf_counter() - start, "s")
        run.add(5, 2)
        run.finish()
        self._note("start to the first tokens", time.perf_counter() - start, "s", goal=10.0)

    def run(self, **settings: Any) -> Run:
        """Build a run; the first one compiles the kernels of all. `settings` may only make steps smaller."""
        with without_rehearsal() if self._is_rehearsed else nullcontext():
            run = Run(self._parts, replace(self._parts.config, **settings))
        self._is_rehearsed = True
        return run

    def _note(
        self, name: str, value: float, unit: str, *, roofline: float = 0.0, goal: float = 0.0, **counts: int
    ) -> None:
        is_less_better = unit in ("ms", "s")
        met = (value <= goal if is_less_better else value >= goal) if goal else None
        cache = f"{self.kv_cache_dtype} cache" if self.kv_cache_dtype != "auto" else None
        model = " ".join(filter(None, (self.name, self.quantization, cache)))
        self.figures.append(Figure(f"{model}: {name}", value, unit, roofline, goal, met, **counts))
        print(self.figures[-1], flush=True)
        self._save(self.figures)  # at once: the next figure may hang

    def decode(self, num_rows: int, *, goal: float = 0.0, note: str = "", is_sampled: bool = False) -> None:
        """Measure the median step in which every row got a token. The goal is tokens/s, at batch 1 milliseconds."""
        context, num_tokens = 1024 // self.scale, 80
        run = self.run()
        run.capture({num_rows})
        note = f", sampled{note}" if is_sampled else note
        for _ in range(num_rows):
            run.add(context, num_tokens, SAMPLED if is_sampled else GREEDY)
        ends = [end for end, ids in run.steps() if len(ids) == num_rows]
        if len(ends) < 8:
            print(f"{self.name}: {num_rows} x {context} have no room in this GPU's cache", flush=True)
            return
        seconds = statistics.median(after - before for before, after in pairwise(ends[4:]))
        roofline = self.model.decode_s(num_rows, context + num_tokens / 2)
        if num_rows == 1:
            self._note(
                f"decode 1 x {context}{note}", seconds * 1e3, "ms", roofline=roofline * 1e3, goal=goal, **run.counts
            )
        else:
            name = f"decode {num_rows} x {context}{note}"
            rate, best = num_rows / seconds, num_rows / roofline
            self._note(name, rate, "tokens/s", roofline=best, goal=goal, **run.counts)

    def switches(self, known: Iterable[tuple[int, bool]], *, max_rows: int) -> None:
        """Measure the decodes that use a feature with and without it, in newly captured graphs, for all SWITCHES.

        `known`: (rows, True if sampled) of decodes that have been measured with all features.
        """
        known = set(known)
        for name, switch in SWITCHES.items():
            cases = dict.fromkeys((min(rows, max_rows), switch.is_sampled) for rows in switch.numbers_of_rows)
            for num_rows, is_sampled in cases.keys() - known:
                self.decode(num_rows, is_sampled=is_sampled)
            known |= cases.keys()
            with self.without(name):
                for num_rows, is_sampled in cases:
                    self.decode(num_rows, note=f", no {name}", is_sampled=is_sampled)

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Switch one of SWITCHES off for the runs that are built within the block: they compile other kernels."""
        self._is_rehearsed = False
        with without(name):
            yield
        self._is_rehearsed = False

    def prefill(self, num_tokens: int, *, goal: float = 0.0) -> None:
        """Measure the share of the matmul's rate that the fastest of three prompts reaches."""
        times = []
        for _ in range(3):
            run = self.run()
            run.add(num_tokens, 1)
            start = time.perf_counter()
            run.finish()
            times.append(time.perf_counter() - start)
        share = self.model.prefill_flops(num_tokens) / min(times) / self.model.matmul
        self._note(f"prefill {num_tokens}, of the matmul", share, "", roofline=1.0, goal=goal)
        self._note(f"prefill {num_tokens}", num_tokens / min(times), "tokens/s")

    def gaps(self, *, goal: float = 0.0) -> None:
        """Measure the P99 of 64 decodes' gaps while a prompt of 8k is computed beside them, 2048 tokens a step."""
        run = self.run(max_num_batched_tokens=2048 // self.scale)
        run.capture({64 // self.scale})
        context, prompt_len = 1024 // self.scale, 8192 // self.scale
        decodes = {run.add(context, 200) for _ in range(64 // self.scale)}
        last: dict[str, float] = {}
        gaps, prompt = [], None
        for end, ids in run.steps():
            for request_id in decodes.intersection(ids):
                if prompt is not None and request_id in last:
                    gaps.append(end - last[request_id])
                last[request_id] = end
            if prompt is None and len(decodes.intersection(ids)) == len(decodes):
                prompt = run.add(prompt_len, 1)
            elif prompt in ids:
                break
        run.core.abort_all()
        run.finish()
        gaps.sort()
        self._note("P99 gap beside an 8k prompt", gaps[int(0.99 * len(gaps))] * 1e3, "ms", goal=goal, **run.counts)

    def throughput(self, num_requests: int, *, goal_share: float = 0.0) -> None:
        """Measure nano-vllm's workload: all requests at once, prompts and outputs uniform in 100..1024."""
        choose, run = Random(1), self.run()
        run.capture()
        lengths = [(choose.randint(100, 1024), choose.randint(100, 1024)) for _ in range(num_requests)]
        lengths = [(prompt // self.scale, output // self.scale) for prompt, output in lengths]
        for pair in lengths:
            run.add(*pair)
        start = time.perf_counter()
        run.finish()
        rate = sum(output for _, output in lengths) / (time.perf_counter() - start)
        roofline = self._roofline_of(lengths)
        name = f"{num_requests} requests, 100..1024"
        self._note(name, rate, "tokens/s", roofline=roofline, goal=goal_share * roofline, **run.counts)

    def _roofline_of(self, lengths: Sequence[tuple[int, int]]) -> float:
        """Return output tokens/s if prompts run at the matmul's rate and every step decodes all remaining requests."""
        seconds = sum(self.model.prefill_flops(prompt) for prompt, _ in lengths) / self.model.matmul
        for step in range(max(output for _, output in lengths)):
            contexts = [prompt + step for prompt, output in lengths if output > step]
            seconds += self.model.decode_s(len(contexts), sum(contexts) / len(contexts))
        return sum(output for _, output in lengths) / seconds


def measure(end_to_end: EndToEnd, *, seconds: float) -> None:
    """Measure all figures. Absolute goals are an H100's, scaled by this GPU's memory bandwidth."""
    each, deadline = end_to_end, time.monotonic() + seconds
    speed = each.model.copy / H100_COPY
    steps: list[Any]
    is_plain = not each.quantization and each.kv_cache_dtype == "auto"
    if each.name == "llama-3.1-8b" and is_plain:
        steps = [
            lambda: each.decode(1, goal=5.9 / speed),
            lambda: each.decode(32, goal=4200 * speed),
            lambda: each.prefill(8192, goal=0.62),
            lambda: each.gaps(goal=80.0),
            lambda: each.decode(256, goal=12_100 * speed),
            lambda: each.switches([(1, False), (32, False)], max_rows=32),
        ]
    elif not is_plain or each.name in ("qwen3-30b-a3b", "tiny-mixture"):
        rows = (1, max(2, 32 // each.scale), max(3, 64 // each.scale), max(4, 256 // each.scale))
        steps = [lambda num_rows=num_rows: each.decode(num_rows) for num_rows in rows]
        steps += [lambda: each.prefill(8192 // each.scale)]
    else:
        small = 4 if each.name == "tiny" else 256
        steps = [
            lambda: each.decode(1),
            lambda: each.decode(max(2, 32 // each.scale)),
            lambda: each.prefill(8192 // each.scale),
            lambda: each.throughput(small, goal_share=0.55),
        ]
        steps += [each.gaps, lambda: each.switches([(1, False)], max_rows=1)] if each.name == "tiny" else []
    for step in steps:
        if time.monotonic() > deadline:
            print(f"{each.name}: no time left for the rest", flush=True)
            return
        step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=ALL_SHAPES)
    parser.add_argument("--copy", type=float, default=H100_COPY / 1e9, help="GB/s of a copy in the same session")
    parser.add_argument("--matmul", type=float, default=H100_MATMUL / 1e12, help="TFLOP/s of a matmul likewise")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=int, default=1, help="divide all lengths: a test of this script")
    parser.add_argument("--quantization", help="of the weights; the roofline stays that of 16 bits")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--seconds", type=float, default=120.0, help="begin no figure after that")
    options = parser.parse_args()
    shape = ALL_SHAPES[options.shape]
    model = Model(shape, copy=options.copy * 1e9, matmul=options.matmul * 1e12)
    cache = "" if options.kv_cache_dtype == "auto" else "cache"
    name = "-".join(filter(None, (options.shape, options.quantization, cache))) + ".json"
    folder = os.environ.get("OUT")
    path = Path(folder) / name if folder else Path(f"bench-{name}")
    with tempfile.TemporaryDirectory() as model_folder:
        (Path(model_folder) / "config.json").write_text(json.dumps(shape))
        save = lambda figures: path.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))  # noqa: E731
        sizes = {"device": options.device, "scale": options.scale, "quantization": options.quantization}
        sizes["kv_cache_dtype"] = options.kv_cache_dtype
        measure(EndToEnd(options.shape, model, Path(model_folder), save=save, **sizes), seconds=options.seconds)


if __name__ == "__main__":
    main()
