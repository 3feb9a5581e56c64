"""Requantization of a GGUF file by llama.cpp's own quantizer: `python requantize.py FROM TO BITS`.

Runs in llama.cpp's own venv. 16 bits are BF16, 8 are Q8_0, 4 are Q4_0 (for the output matrix it chooses Q8_0 or Q6_K).
"""

import ctypes
import sys

import llama_cpp as lib

_FILE_TYPES = {16: lib.LLAMA_FTYPE_MOSTLY_BF16, 8: lib.LLAMA_FTYPE_MOSTLY_Q8_0, 4: lib.LLAMA_FTYPE_MOSTLY_Q4_0}


def requantize(source: str, target: str, bits: int) -> None:
    """Write `target`. Raises RuntimeError."""
    lib.llama_backend_init()
    params = lib.llama_model_quantize_default_params()
    params.ftype = _FILE_TYPES[bits]
    params.allow_requantize = True
    if lib.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise RuntimeError(f"{source} cannot be made {target}")


if __name__ == "__main__":
    requantize(sys.argv[1], sys.argv[2], int(sys.argv[3]))
