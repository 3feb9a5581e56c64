"""Without a CUDA device the kernels run under Triton's interpreter, which must be chosen before they are decorated.

A test of another folder may have imported Triton first (transformers does). Then the jitted functions of
triton.language, for example tl.sum, were decorated for the compiler, and are decorated again.
"""

import os
from importlib.util import find_spec

import torch


def _choose_interpreter() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import redzones
    import triton
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    for module in (tl, tl.standard):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                setattr(module, name, triton.jit(value.fn))
    redzones.install()


if find_spec("triton") is None:  # macOS, Windows, or a plain CPU install
    collect_ignore_glob = ["cuda/*"]
elif not torch.cuda.is_available():
    _choose_interpreter()
