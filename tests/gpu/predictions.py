"""Prediction of a decode step of at most 8 rows in 16 bits: each kernel's launches, programs, bytes and time.

    python tests/gpu/predictions.py qwen3-30b-a3b [--rows 1] [--context 1024] [--copy 4250]

A kernel takes a constant and its bytes at 90 % of a copy's speed, and a launch in a graph follows after GAP. The
constants were chosen by products of an H200 alone (tests/bench/RESULTS.md). A token of Llama-3.1-8B at 1 x 1024 then
comes to 5.11 ms, and took 4.89; a step of 8 rows to 5.35, and took 5.30; on an H100 a token to 6.76, and took 6.86.
step_profile.py prints what it measures beside them.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import paths  # noqa: F401

from splitfuse.kernels.cuda.device_info import H100

GAP, SHARE = 0.8, 0.9  # microseconds between two kernels; share of the copy's speed
H100_COPY, H200_COPY = 3.0e12, 4.25e12
# Microseconds beside those of the bytes: chains of loads from device memory, 0.5 to 1 each, and reductions.
CONSTANTS = {
    "rms_norm": 1.6, "few_rows": 1.5, "add_splits": 1.5, "rope_and_cache": 1.6, "decode": 7.0,
    "merge_pieces": 3.0, "route": 3.5, "group_by_expert": 4.5, "grouped_matmul": 2.0, "weigh": 2.0, "others": 1.7,
}  # fmt: skip
NUM_OTHERS = 10  # kernels around the layers: the token's embedding, the rows that are kept, argmax, copies


class Predicted(NamedTuple):
    kernel: str  # as the profile names it, without underscores
    what: str
    launches: int  # in a step
    programs: int = 1
    num_bytes: float = 0.0  # of weights or keys, all programs'
    steps: int = 1  # of a program's main loop, one after the other

    def microseconds(self, copy: float) -> float:
        """Return the time of one launch, without the gap."""
        return CONSTANTS[self.kernel] + self.num_bytes / (SHARE * copy) * 1e6


def predict(shape: dict[str, Any], num_rows: int, context: int) -> list[Predicted]:
    """Return the kernels of a decode step of a Llama-shaped model, dense or with experts in every layer.

    Nothing for more rows than `few_rows` serves: cuBLAS multiplies them.
    """
    from splitfuse.kernels.cuda import attention_decode, tile_configs  # the import decides on the interpreter
    from splitfuse.kernels.cuda.linear.few_rows import MAX_ROWS

    if num_rows > MAX_ROWS:
        return []
    heads, kv_heads, dim = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
    hidden, num_layers, kv_bytes = shape["hidden_size"], shape["num_hidden_layers"], 4 * kv_heads * dim
    shares = attention_decode.choose_num_programs(kv_heads, H100)
    tokens = num_rows * context
    shares = max(1, min(shares, tokens // (tile_configs.min_tokens_per_split(90) + 32)))
    tile = attention_decode.choose_config(heads // kv_heads, dim, 2, H100).BLOCK_N
    kernels = [
        Predicted("rms_norm", "the first", 1, num_rows),
        Predicted("rms_norm", "with a residual", 2 * num_layers, num_rows),
        *_product("q, k, v", num_layers, hidden, (heads + 2 * kv_heads) * dim),
        Predicted("rope_and_cache", "", num_layers, num_rows * kv_heads),
        Predicted("decode", "", num_layers, shares * kv_heads, tokens * kv_bytes, -(-tokens // shares // tile)),
        Predicted("merge_pieces", "", num_layers, num_rows * heads),
        *_product("o", num_layers, heads * dim, hidden),
    ]
    if shape.get("num_experts"):
        kernels += _mixture(shape, num_rows)
    else:
        inner = shape["intermediate_size"]
        kernels += _product("gate, up", num_layers, hidden, 2 * inner, is_gated=True)
        kernels += _product("down", num_layers, inner, hidden)
    kernels += _product("head", 1, hidden, shape["vocab_size"])
    return [*kernels, Predicted("others", "around the layers", NUM_OTHERS)]


def _product(what: str, launches: int, inputs: int, outputs: int, *, is_gated: bool = False) -> Iterator[Predicted]:
    from splitfuse.kernels.cuda.linear import few_rows

    config = few_rows.choose_config(2, H100)
    columns = outputs // 2 if is_gated else outputs
    splits = few_rows.choose_num_splits(columns, 2 * inputs, config, H100)
    programs, steps = -(-columns // config.BLOCK_N) * splits, -(-inputs // config.BLOCK_K // splits)
    yield Predicted("few_rows", what, launches, programs, 2.0 * inputs * outputs, steps)
    if splits > 1:
        yield Predicted("add_splits", what, launches, -(-columns // 1024))


def _mixture(shape: dict[str, Any], num_rows: int) -> Iterator[Predicted]:
    from splitfuse.kernels.cuda import moe

    layers, hidden, inner = shape["num_hidden_layers"], shape["hidden_size"], shape["moe_intermediate_size"]
    num_experts, top_k = shape["num_experts"], shape["num_experts_per_tok"]
    num_pairs = num_rows * top_k
    hit = num_experts * (1 - (1 - top_k / num_experts) ** num_rows)  # experts, if each is as likely
    config = moe.choose_config(num_pairs, num_experts, 2, H100)
    yield from _product("router", layers, hidden, num_experts)
    yield Predicted("route", "", layers, num_rows)
    if num_pairs > num_experts:
        yield Predicted("group_by_expert", "", layers, num_experts)
    for what, outputs, inputs in (("experts' gate, up", 2 * inner, hidden), ("experts' down", hidden, inner)):
        programs, steps = round(hit) * -(-outputs // config.BLOCK_N), -(-inputs // config.BLOCK_K)
        yield Predicted("grouped_matmul", what, layers, programs, hit * 2 * outputs * inputs, steps)
    yield Predicted("weigh", "", layers, num_rows * -(-hidden // 1024))


def copy_speed(gpu: str) -> float:
    """Return the bytes per second that a copy reads and writes on a GPU of this name; an H200's if it is not known."""
    return H100_COPY if "H100" in gpu else H200_COPY


def by_kernel(kernels: Sequence[Predicted], copy: float) -> dict[str, float]:
    """Return each kernel's microseconds in a step."""
    found: dict[str, float] = {}
    for kernel in kernels:
        found[kernel.kernel] = found.get(kernel.kernel, 0.0) + kernel.launches * kernel.microseconds(copy)
    return found


def step_us(kernels: Sequence[Predicted], copy: float) -> float:
    """Return the step's microseconds, with the gaps."""
    return sum(by_kernel(kernels, copy).values()) + GAP * sum(kernel.launches for kernel in kernels)


def main() -> None:
    from end_to_end import ALL_SHAPES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=ALL_SHAPES)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--copy", type=float, default=H200_COPY / 1e9, help="GB/s of a copy")
    options = parser.parse_args()
    kernels = predict(ALL_SHAPES[options.shape], options.rows, options.context)
    print(f"{'kernel':16} {'of':18} launches programs KiB/program steps   us each  us a step")
    for kernel in kernels:
        us = kernel.microseconds(options.copy * 1e9)
        kib = kernel.num_bytes / kernel.programs / 1024
        print(
            f"{kernel.kernel:16} {kernel.what:18} {kernel.launches:8} {kernel.programs:8} {kib:11.1f} {kernel.steps:5} "
            f"{us:9.1f} {us * kernel.launches:10.0f}"
        )
    num_launches = sum(kernel.launches for kernel in kernels)
    print(f"{num_launches} launches, {GAP * num_launches:.0f} us between them; a step: "
          f"{step_us(kernels, options.copy * 1e9):.0f} us")  # fmt: skip


if __name__ == "__main__":
    main()
