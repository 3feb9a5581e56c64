"""Compilation ahead, on a GPU only: the interpreter compiles nothing. tests/gpu/test_compile_report.py has the rest."""

import pytest
import torch
import triton
from kernel_cases import DEVICE, INTERPRETED, assert_near, random_tensor

from splitfuse.kernels import reference
from splitfuse.kernels.cuda import norm
from splitfuse.kernels.cuda.compile_ahead import compile_ahead

pytestmark = pytest.mark.skipif(INTERPRETED, reason="needs a GPU")


def test_what_was_launched_ahead_is_neither_run_then_nor_compiled_later(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = (random_tensor(*shape, seed=1, dtype=torch.bfloat16) for shape in ((3, 72), (72,)))
    residual = torch.zeros_like(x)
    with compile_ahead() as kernels:
        norm.add_rms_norm(x, residual, weight, eps=1e-6)
    assert not residual.any()
    assert len(kernels) == 1
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **_: pytest.fail("it is compiled again"))
    normed, _ = norm.add_rms_norm(x, residual, weight, eps=1e-6)
    assert normed.device.type == DEVICE
    assert_near(normed, reference.rms_norm(x.double(), weight.double(), eps=1e-6))
