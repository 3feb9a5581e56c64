"""Predictions name the kernels that a step launches, and what a model takes while it loads; all without a GPU."""

import json
import os
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
from end_to_end import ALL_SHAPES, Model
from predictions import H100_COPY, H200_COPY, predict, step_us

pytest.importorskip("triton")
MIXTURE = "qwen3-30b-a3b"


@lru_cache
def launched(shape: str) -> dict[str, Any]:
    """Return what launched.py finds, from its own process: in this one kernels may be interpreted."""
    script = str(Path(__file__).with_name("launched.py"))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, script, shape, "--rows", "1", "8"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("shape", "num_rows"), [(MIXTURE, 1), (MIXTURE, 8), ("llama-3.1-8b", 1), ("llama-3.1-8b", 8)])
def test_a_prediction_has_the_launches_of_a_step(shape: str, num_rows: int) -> None:
    predicted: Counter[str] = Counter()
    for kernel in predict(ALL_SHAPES[shape], num_rows, 1024):
        predicted[kernel.kernel] += kernel.launches
    del predicted["others"]
    assert launched(shape)["steps"][str(num_rows)]["launches"] == predicted


@pytest.mark.parametrize("shape", [MIXTURE, "llama-3.1-8b"])
def test_a_prediction_has_the_programs_of_products(shape: str) -> None:
    grids = launched(shape)["steps"]["1"]["grids"]
    for name in ("few_rows", "grouped_matmul"):
        kernels = [kernel for kernel in predict(ALL_SHAPES[shape], 1, 1024) if kernel.kernel == name]
        assert {kernel.programs for kernel in kernels} == {prod(grid) for grid in grids.get(name, ())}


def test_experts_of_one_row_give_every_multiprocessor_work() -> None:
    """Check that each of an H200's 132 has two to four programs, all with weights to read, and few steps in a row."""
    for kernel in predict(ALL_SHAPES[MIXTURE], 1, 1024):
        if kernel.kernel == "grouped_matmul":
            assert 2 * 132 <= kernel.programs <= 4 * 132
            assert kernel.steps <= 16


def test_what_was_measured_is_within_a_tenth_of_its_prediction() -> None:
    """Check the constants by steps of Llama-3.1-8B on the two cards of tests/bench/RESULTS.md."""
    shape = ALL_SHAPES["llama-3.1-8b"]
    for num_rows, copy, measured in ((1, H200_COPY, 4890), (8, H200_COPY, 8 / 1509.87 * 1e6), (1, H100_COPY, 6858)):
        assert step_us(predict(shape, num_rows, 1024), copy) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_every_shape_is_measured_in_16_bits_as_its_roofline_is(shape: str) -> None:
    assert ALL_SHAPES[shape]["dtype"] == "bfloat16"


@pytest.mark.parametrize("shape", [MIXTURE, "llama-3.1-8b"])
def test_loading_takes_hardly_more_than_the_weights(shape: str) -> None:
    found, model = launched(shape), Model(ALL_SHAPES[shape], copy=1, matmul=1)
    assert found["dtype"] == "torch.bfloat16"
    every = model.layer_weights + 2 * ALL_SHAPES[shape]["hidden_size"] * ALL_SHAPES[shape]["vocab_size"]
    if shape == MIXTURE:
        every += 48 * (128 - 8) * 3 * 2048 * 768  # experts that one token does not choose
    assert found["weights"] == pytest.approx(2 * every, rel=1e-3)
    assert found["peak"] <= 1.02 * found["weights"]


@pytest.mark.thorough
def test_launches_of_published_models_are_counted() -> None:
    command = [sys.executable, str(Path(__file__).with_name("launch_counts.py")), "--json", "--rows", "1"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    rows = {(row["model"], row["dtype"]): row for row in json.loads(done.stdout)}
    counts = {"bfloat16": 386, "fp8": 514, "int8": 547, "int4": 547}
    assert {dtype: rows["llama-3.1-8b", dtype]["launches"] for dtype in counts} == counts
    assert rows["qwen3.5-35b-a3b", "bfloat16"]["launches"] == 862
    assert not rows["qwen3.5-35b-a3b", "bfloat16"]["in_graph"], "until a card has run them"
    assert {row["in_graph"] for (model, _), row in rows.items() if model in ("llama-3.1-8b", "gpt-oss-20b")} == {True}
