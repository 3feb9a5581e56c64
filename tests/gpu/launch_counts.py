"""Launches of Triton kernels in a decode step of well-known models, counted without a GPU as launched.py does.

    python tests/gpu/launch_counts.py [--json] [--rows 1 8 32]

`in_graph`: true if the steps of such a model are replayed as CUDA graphs by default. Products of many rows are torch's
and not counted.
"""

import argparse
import json
from typing import Any

import paths  # noqa: F401
from end_to_end import ALL_SHAPES
from launched import be_a_gpu, launches_of, loaded
from real_configs import REAL_CONFIGS

from splitfuse.engine import EngineConfig
from splitfuse.engine.config import ResolvedConfig
from splitfuse.engine.execution.runner.launching import graphs_refusal

PUBLISHED = {
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3.5-0.8b": "Qwen/Qwen3.5-0.8B",
    "qwen3.5-35b-a3b": "Qwen/Qwen3.5-35B-A3B",
    "qwen3-next-80b-a3b": "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "gpt-oss-20b": "openai/gpt-oss-20b",
}
SHAPES = {name: ALL_SHAPES[name] for name in ("llama-3.1-8b", "qwen3-30b-a3b")}
SHAPES |= {name: {**REAL_CONFIGS[config], "dtype": "bfloat16"} for name, config in PUBLISHED.items()}
QUANTIZED = {"llama-3.1-8b": ("fp8", "int8", "int4")}


def counts(numbers_of_rows: list[int]) -> list[dict[str, Any]]:
    """Return a row for each model, format and number of rows."""
    found = []
    for name, shape in SHAPES.items():
        for quantization in (None, *QUANTIZED.get(name, ())):
            model, _ = loaded(shape, quantization)
            facts = ResolvedConfig.of(EngineConfig(), device="cuda", max_model_len=2048)
            row = {"model": name, "dtype": quantization or str(model._dtype).removeprefix("torch.")}
            in_graph = graphs_refusal(model, facts) is None
            for num_rows in numbers_of_rows:
                launches = len(launches_of(model, model._dtype, num_rows, 1024))
                found.append({**row, "rows": num_rows, "launches": launches, "in_graph": in_graph})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    options = parser.parse_args()
    be_a_gpu()
    rows = counts(options.rows)
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        graph = "in graphs" if row["in_graph"] else "eager"
        print(f"{row['model']:16} {row['dtype']:9} {row['rows']:4} rows {row['launches']:5} launches  {graph}")


if __name__ == "__main__":
    main()
