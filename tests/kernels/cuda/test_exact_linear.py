from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, DOT_DTYPES, INTERPRETED, assert_near, random_tensor
from ordered_dots import use_ordered_dots

from splitfuse.kernels import ops
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda import device_info
from splitfuse.kernels.cuda.device_info import H100
from splitfuse.kernels.cuda.linear import exact_linear, few_rows, quantized_experts

TILES = [exact_linear.choose_config(rows, 96, 2, H100) for rows in (1, 100, 2048)]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_info.EXACT, "is_on", True)
    use_ordered_dots(monkeypatch)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DOT_DTYPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_rows_product_depends_on_no_other_row(dtype: torch.dtype, has_bias: bool) -> None:
    weight, bias = random_tensor(96, 200, seed=1, dtype=dtype) / 8, random_tensor(96, seed=2, dtype=dtype)
    packed = cuda.pack_linear(weight, bias if has_bias else None)
    x = random_tensor(150, 208, seed=3, dtype=dtype)[:, :200]
    whole = cuda.linear(x, packed)
    expected = x.double() @ weight.double().T + (bias.double() if has_bias else 0)
    assert_near(whole, expected, tolerance=5e-3 if dtype == torch.bfloat16 else 0.0)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for begin, end in ((0, 1), (3, 12), (10, 150)):
        assert torch.equal(cuda.linear(x[order[begin:end]], packed), whole[order[begin:end]])


def test_no_tile_changes_a_bit() -> None:
    """In float32 under the interpreter, which hides no bit; on a GPU float16, whose tiles these are."""
    dtype = torch.float32 if INTERPRETED else torch.float16
    weight, x = random_tensor(96, 200, seed=1, dtype=dtype), random_tensor(70, 200, seed=2, dtype=dtype)
    assert len(set(TILES)) == 3
    products = [exact_linear.multiply(x, weight, None, config=tile) for tile in TILES]
    assert all(torch.equal(product, products[0]) for product in products)


def test_a_split_of_k_by_the_number_of_rows_is_seen() -> None:
    """The bug that this file is for: parts of K that are added at the end."""
    weight, x = random_tensor(96, 512, seed=1, dtype=torch.float32), random_tensor(1, 512, seed=2, dtype=torch.float32)
    split = few_rows.multiply(x, few_rows.Weight(weight, None, None), dtype=torch.float32, num_splits=2)
    assert not torch.equal(split, exact_linear.multiply(x, weight, None))


def _packed(kind: str, num_outputs: int, seed: int) -> Any:
    weight = random_tensor(num_outputs, 256, seed=seed, dtype=torch.float16) / 16
    return cuda.pack_fp8(weight) if kind == "fp8" else cuda.pack_linear(weight, bits=int(kind.removeprefix("int")))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_a_packed_weights_products_depend_on_no_other_row(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, x = _packed(kind, 96, seed=1), random_tensor(160, 256, seed=3, dtype=torch.float16)
    whole = cuda.linear(x, packed)
    for begin, end in ((0, 1), (5, 150)):
        assert torch.equal(cuda.linear(x[begin:end], packed), whole[begin:end])
        assert torch.equal(cuda.linear_silu_mul(x[begin:end], packed), cuda.silu_mul(whole)[begin:end])
    monkeypatch.setattr(device_info.EXACT, "is_on", False)
    assert_near(whole, cuda.linear(x, packed).double(), tolerance=4e-3)


@pytest.mark.thorough  # the order within a tile is tested above, that of experts below
@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_packed_experts_keep_the_order_too(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tile for any number of pairs: the interpreter does not show that tiles differ in their instruction."""
    choose, tiles = quantized_experts.choose_config, set()
    monkeypatch.setattr(quantized_experts, "choose_config", lambda *args: tiles.add(choose(*args)) or choose(*args))
    bits = 16 if kind == "fp8" else int(kind.removeprefix("int"))
    parts = [
        ops.ExpertWeights([random_tensor(128, 256, seed=seed, dtype=torch.float16) / 16] * 2,
                          random_tensor(256, 128, seed=seed + 9, dtype=torch.float16) / 16)
        for seed in range(2)
    ]  # fmt: skip
    experts = cuda.pack_experts(parts, num_experts=2, dtype=torch.float16, bits=bits, is_fp8=kind == "fp8")
    x = random_tensor(40, 256, seed=3, dtype=torch.float16)
    weights, ids = cuda.route(random_tensor(40, 2, seed=5, dtype=torch.float16), ops.RouteArgs(1, True))
    whole = cuda.experts(x, weights, ids, experts)
    for rows in (slice(0, 1), slice(2, 36)):
        assert torch.equal(cuda.experts(x[rows], weights[rows], ids[rows], experts), whole[rows])
    assert len(tiles) == 1


def test_gates_and_experts_keep_the_order_too() -> None:
    weight = random_tensor(64, 64, seed=1, dtype=torch.float16)
    x = random_tensor(20, 64, seed=3, dtype=torch.float16)
    packed = cuda.pack_linear(weight)
    assert torch.equal(cuda.linear_silu_mul(x[:2], packed), cuda.linear_silu_mul(x, packed)[:2])
    parts = [ops.ExpertWeights([weight], random_tensor(64, 32, seed=9, dtype=torch.float16)) for _ in range(4)]
    experts = cuda.pack_experts(parts, num_experts=4, dtype=torch.float16)
    weights, ids = cuda.route(random_tensor(20, 4, seed=5, dtype=torch.float16), ops.RouteArgs(2, True))
    whole = cuda.experts(x, weights, ids, experts)
    for rows in (slice(0, 1), slice(3, 9)):
        assert torch.equal(cuda.experts(x[rows], weights[rows], ids[rows], experts), whole[rows])
