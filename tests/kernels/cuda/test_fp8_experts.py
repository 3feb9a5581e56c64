"""Experts' products in e4m3 against float64 products of the rounded values, with few pairs and many."""

from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, assert_near, random_tensor
from quantized_cases import FORMS, random_weight
from torch import Tensor

from splitfuse.kernels import ops
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda import moe_route, quantized_linear
from splitfuse.kernels.cuda.device_info import H100, SMALLEST_SHARED_MEMORY, DeviceInfo
from splitfuse.kernels.cuda.linear import fp8_experts, quantized_experts
from splitfuse.kernels.cuda.linear.quantized_experts import QuantizedExperts
from splitfuse.kernels.cuda.quantized_linear import Config, QuantizedLinear
from splitfuse.kernels.quantize import QuantizedWeight

pytestmark = pytest.mark.sampled(12)

NUM_EXPERTS, TOP_K, NUM_TOKENS = 3, 2, 45
GPUS = [H100, DeviceInfo(89, 58, SMALLEST_SHARED_MEMORY)]
CONFIGS = {fp8_experts.choose_config(pairs, 8, gpu) for pairs in (130, 250, 4096) for gpu in GPUS}
FP8_FORMS = ["float8 per channel", "float8 in blocks", "float8 of 128"]


def _ids(num_tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    chosen = [torch.randperm(NUM_EXPERTS, generator=generator)[:TOP_K] for _ in range(num_tokens)]
    return torch.stack(chosen).to(torch.int32).to(DEVICE)


def _x(num_rows: int, num_inputs: int, dtype: torch.dtype) -> Tensor:
    """Return rows as a view of a wider tensor of NaN, with values of different sizes."""
    wide = torch.full((num_rows, num_inputs + 24), float("nan"), dtype=dtype, device=DEVICE)
    wide[:, 8:-16] = random_tensor(num_rows, num_inputs, seed=3, dtype=dtype)
    wide[:, 8:-16] *= torch.linspace(0.01, 2.0, num_inputs, device=DEVICE).to(dtype)
    return wide[:, 8:-16]


def _rounded(x: Tensor, group: int) -> Tensor:
    """Round x group by group, in torch → float64."""
    grouped = x.float().reshape(len(x), -1, group or x.shape[1])
    scales = (grouped.abs().amax(dim=2, keepdim=True) * (1 / 448)).clamp_min(1e-30)
    values = (grouped / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (values.double() * scales.double()).flatten(1)


def _packed(weights: list[QuantizedWeight]) -> QuantizedLinear:
    each = [ops.ExpertWeights([weight.rows(slice(0, None))], weight) for weight in weights]
    packed = cuda.pack_experts(each, num_experts=NUM_EXPERTS, dtype=torch.float16, input_bits=8)
    assert isinstance(packed, QuantizedExperts)
    assert isinstance(packed.down, QuantizedLinear)
    assert packed.down.rounds_inputs
    return packed.down


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", [*sorted(CONFIGS), Config(16, 64, 2, 4), Config(32, 128, 4, 2)], ids=str)
@pytest.mark.parametrize(
    ("form", "shape"),
    [*((form, (140, 256)) for form in FP8_FORMS), ("float8 per channel", (140, 176)), ("float8 in blocks", (256, 384))],
)
def test_products(form: str, shape: tuple[int, int], config: Any, dtype: torch.dtype) -> None:
    """Of e4m3 in e4m3's tiles, and in 16 bits, where the same rounding comes before; 140 outputs are cut tiles."""
    is_16 = isinstance(config, Config)
    if is_16 and dtype == torch.bfloat16:
        pytest.skip("16 bits are float16 there")
    weights = [random_weight(FORMS[form], *shape, seed=expert).to(torch.device(DEVICE)) for expert in range(3)]
    packed, x, ids = _packed(weights), _x(NUM_TOKENS, shape[1], dtype), _ids(NUM_TOKENS)
    bias = random_tensor(NUM_EXPERTS, shape[0], seed=2, dtype=dtype)
    tiles = moe_route.group_by_expert(ids, num_experts=NUM_EXPERTS, block_m=config.BLOCK_M)
    got = quantized_experts._multiply(x, packed, bias, tiles, config)
    rounded = _rounded(x, packed.group)
    expected = [
        rounded[pair // TOP_K] @ weights[expert].dequantized().double().T + bias[expert].double()
        for pair, expert in enumerate(ids.flatten().tolist())
    ]
    # In 16 bits the rounded rows of groups keep 11 bits below the row's largest; Hopper's tensor cores keep some 14
    # bits of a group's sum of e4m3 (DeepSeek-V3, arXiv 2412.19437, 3.3.2): 0.0031 at most on an H100.
    assert_near(got, torch.stack(expected), tolerance=4e-3)


def _experts(form: str) -> list[ops.ExpertWeights]:
    def weight(*shape: int, seed: int) -> QuantizedWeight:
        return random_weight(FORMS[form], *shape, seed=seed).to(torch.device(DEVICE))

    return [
        ops.ExpertWeights([weight(128, 256, seed=10 * e), weight(128, 256, seed=10 * e + 1)], weight(256, 128, seed=e))
        for e in range(NUM_EXPERTS)
    ]


@pytest.mark.thorough  # test_fp8_linear.py has it of one weight
@pytest.mark.parametrize("form", FP8_FORMS)
def test_a_token_is_rounded_alike_with_few_pairs_and_many(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = cuda.pack_experts(_experts(form), num_experts=NUM_EXPERTS, dtype=torch.float16, input_bits=8)
    x, ids = _x(NUM_TOKENS, 256, torch.float16) / 8, _ids(NUM_TOKENS)
    in_16_bits = cuda.experts(x, torch.ones(ids.shape).to(DEVICE), ids, packed)
    monkeypatch.setattr(DeviceInfo, "has_fp8_matmul", True)
    calls, multiply = [], fp8_experts.multiply_pairs
    monkeypatch.setattr(fp8_experts, "multiply_pairs", lambda *a, **o: calls.append(1) or multiply(*a, **o))
    in_e4m3 = cuda.experts(x, torch.ones(ids.shape).to(DEVICE), ids, packed)
    assert len(calls) == 2
    # An input of `down` may round to the next number of e4m3.
    assert (in_e4m3 - in_16_bits).abs().max() <= 0.03 * in_16_bits.abs().max()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, under the interpreter
@pytest.mark.parametrize("has_fp8", [False, True])
@pytest.mark.parametrize("form", FP8_FORMS[:2])
def test_what_is_not_finite_is_told_and_stays_in_its_row(
    form: str, has_fp8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = cuda.pack_experts(_experts(form), num_experts=NUM_EXPERTS, dtype=torch.float16, input_bits=8)
    monkeypatch.setattr(DeviceInfo, "has_fp8_matmul", has_fp8)
    x, ids = _x(NUM_TOKENS, 256, torch.float16) / 8, _ids(NUM_TOKENS)
    x[1, 3] = float("inf")
    out = cuda.experts(x, torch.ones(ids.shape).to(DEVICE), ids, packed)
    assert not out[1].isfinite().any()
    assert out[0].isfinite().all()
    assert out[2:].isfinite().all()


@pytest.mark.parametrize(
    ("options", "rounds"), [({}, False), ({"input_bits": 8}, True), ({"is_fp8": True}, True)], ids=str
)
def test_inputs_are_rounded_if_the_user_lets_it_be_done(options: dict[str, Any], rounds: bool) -> None:
    packed = cuda.pack_experts(_experts("float8 in blocks"), num_experts=NUM_EXPERTS, dtype=torch.float16, **options)
    assert isinstance(packed.gate_up, QuantizedLinear)
    assert packed.gate_up.rounds_inputs == rounds


def test_tiles_in_e4m3_are_for_many_pairs_on_gpus_that_have_them() -> None:
    packed = _packed([random_weight(FORMS["float8 in blocks"], 128, 128, seed=e) for e in range(NUM_EXPERTS)])
    for gpu in (*GPUS, H100._replace(capability=100), GPUS[1]._replace(capability=120)):
        assert isinstance(quantized_experts.choose_config(4096, 2, packed, 128, gpu), fp8_experts.Config)
        assert isinstance(quantized_experts.choose_config(1024, 2, packed, 128, gpu), Config)
        plain = packed._replace(rounds_inputs=False)
        assert isinstance(quantized_experts.choose_config(4096, 2, plain, 128, gpu), Config)
    for gpu in (DeviceInfo(80, 108, 166_912), DeviceInfo(80, 304, 65_536, is_amd=True)):
        assert isinstance(quantized_experts.choose_config(4096, 2, packed, 128, gpu), Config)
    assert not fp8_experts.has_layout(quantized_linear.pack(random_weight(FORMS["MXFP4"], 32, 64), None))
