"""Ops are declared in ops.py alone: every backend has the same functions with the same parameters."""

import inspect
from collections.abc import Callable

import pytest

from splitfuse.kernels import ops, reference
from splitfuse.kernels.cpu import backend as cpu
from splitfuse.kernels.cuda import backend as cuda

BY_HAND = ("altup_predict", "altup_correct", "copy_blocks", "pack_quantized", "pack_embedding", "pack_experts")
OPS = [name for name, value in vars(ops).items() if name in BY_HAND or hasattr(value, "__wrapped__")]


def signature(op: Callable[..., object]) -> str:
    """Names, kinds and defaults. `device` chooses the backend, which does not get it; `config` is a test's tile."""
    found = inspect.signature(op).parameters.values()
    return str(inspect.Signature([i.replace(annotation=i.empty) for i in found if i.name not in ("device", "config")]))


@pytest.mark.parametrize("backend", [reference, cpu, cuda], ids=lambda backend: backend.__name__)
def test_a_backend_has_the_ops_as_they_are_declared(backend: object) -> None:
    declared = {name: signature(getattr(ops, name)) for name in OPS if name[0] != "_"}
    assert len(declared) >= 40
    assert {name: signature(getattr(backend, name)) for name in declared} == declared
