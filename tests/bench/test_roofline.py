"""Roofline, the limit of figures, against numbers worked out by hand."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from splitfuse.engine.execution.models.registry import parse_model_config
from splitfuse.engine.extras.bench.offline import SHAPES


@pytest.fixture(scope="module")
def roofline() -> Any:
    spec = importlib.util.spec_from_file_location("roofline", Path(__file__).parent / "peers/roofline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cost(roofline: Any) -> Any:
    return roofline.Cost(parse_model_config(SHAPES["llama-221m"], generation={}))


def test_weights_are_those_of_the_221_m_llama(cost: Any) -> None:
    layer = 1024 * (1024 + 2 * 512) + 1024 * 1024 + 3 * 1024 * 2816
    assert cost.layer_params == 16 * layer
    assert cost.weight_bytes == 2 * (16 * layer + 32000 * 1024)


def test_a_lone_decode_is_bound_by_reading(roofline: Any, cost: Any) -> None:
    rates = roofline.Rates(bandwidth=50e9, matmul=1e15)
    kv_bytes = 101 * 2 * 16 * 8 * 64 * 2
    assert cost.seconds(rates, num_seqs=1, start=100, num_tokens=1) == pytest.approx(
        (cost.weight_bytes + kv_bytes) / 50e9
    )


def test_a_prompt_is_bound_by_multiplying(roofline: Any, cost: Any) -> None:
    rates = roofline.Rates(bandwidth=1e15, matmul=1e12)
    attention = 4 * (512 * 513 / 2) * 16 * 16 * 64
    flop = 2 * 512 * cost.layer_params + 2 * cost.head_params + attention
    assert cost.seconds(rates, num_seqs=1, start=0, num_tokens=512) == pytest.approx(flop / 1e12)


def test_generating_is_a_prompt_and_its_decodes(roofline: Any, cost: Any) -> None:
    rates = roofline.Rates(bandwidth=50e9, matmul=1e12)
    passes = [(0, 8), (8, 1), (9, 1)]
    each = [cost.seconds(rates, num_seqs=2, start=start, num_tokens=count) for start, count in passes]
    assert cost.generate_seconds(rates, num_seqs=2, prompt_len=8, output_len=3) == pytest.approx(sum(each))
