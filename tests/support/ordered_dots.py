"""Dots of Triton's interpreter in the order of a tensor core: one product of an element after the other.

numpy's matmul adds a row's products in an order that depends on the shape of the tile and on the row's place in it.
A tensor core's instruction has one order for all elements; so a kernel is exact if its own order of dots is.
"""

from typing import Any

import numpy as np
import pytest
from kernel_cases import INTERPRETED


def use_ordered_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use them until the test ends. Nothing without the interpreter."""
    if not INTERPRETED:
        return
    from triton.runtime import interpreter

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: object, max_num_imprecise_acc: object) -> Any:
        left, right, out = a.data.astype(np.float32), b.data.astype(np.float32), d.data.astype(np.float32)
        product = np.empty_like(out)
        for k in range(left.shape[1]):
            out += np.multiply(left[:, k : k + 1], right[k : k + 1], out=product)
        return interpreter.TensorHandle(out, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
