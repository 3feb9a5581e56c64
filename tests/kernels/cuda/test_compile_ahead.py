"""Compilation ahead: under the interpreter nothing is compiled. tests/gpu/test_compile_report.py has the rest."""

from pathlib import Path

import pytest
import torch
import triton
from kernel_cases import DEVICE, INTERPRETED, assert_near, random_tensor

from splitfuse.kernels import reference
from splitfuse.kernels.cuda import norm
from splitfuse.kernels.cuda.compile_ahead import compile_ahead, loads_apart

LAUNCHER = """
#include <Python.h>
static PyObject* launch(PyObject* self, PyObject* args) { return PyLong_FromLong(%d); }
static PyMethodDef methods[] = {{"launch", launch, METH_VARARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "launcher", NULL, -1, methods};
PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&module); }
"""


def test_a_launcher_stays_its_own_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    with loads_apart():
        first, second, again = (
            triton.runtime.build.compile_module_from_src(LAUNCHER % number, "launcher") for number in (1, 2, 1)
        )
    assert [loaded.launch() for loaded in (first, second, again)] == [1, 2, 1]


@pytest.mark.skipif(INTERPRETED, reason="needs a GPU")
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
