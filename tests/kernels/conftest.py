"""Choice of Triton's interpreter where there is no CUDA device, which must precede the decoration of kernels.

If a test of another folder has imported Triton first (transformers does), the functions of triton.language that
are themselves jitted, like tl.sum, were decorated for the compiler; they are decorated again.
"""

import os
from importlib.util import find_spec

import torch


def _choose_interpreter() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    for module in (tl, tl.standard):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                setattr(module, name, triton.jit(value.fn))


if find_spec("triton") is None:  # macOS, Windows, or a plain CPU install
    collect_ignore_glob = ["cuda/*"]
elif not torch.cuda.is_available():
    _choose_interpreter()
