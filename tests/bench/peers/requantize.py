"""Requantization of a GGUF file by llama.cpp's own quantizer: `python requantize.py FROM TO BITS`.

Runs in llama.cpp's own venv. 16 bits are BF16, 8 are Q8_0, 4 are Q4_0 (for the output matrix it chooses Q8_0 or Q6_K).
In the place of bits a name such as Q2_K is llama.cpp's mix of that name.
"""

import ctypes
import sys

import llama_cpp as lib

_FILE_TYPES = {"16": "BF16", "8": "Q8_0", "4": "Q4_0"}
_NEEDS_IMPORTANCE = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M")


def requantize(source: str, target: str, bits: str) -> None:
    """Write `target`. Raises RuntimeError."""
    lib.llama_backend_init()
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{_FILE_TYPES.get(bits, bits)}")
    params.allow_requantize = True
    if bits in _NEEDS_IMPORTANCE:
        params.imatrix = _equal_importance(source)
    if lib.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise RuntimeError(f"{source} cannot be made {target}")


def _equal_importance(source: str) -> ctypes.Array:
    """Return ones for the inputs of each matrix: the codebooks' quantizers want an importance, speed does not."""
    import gguf

    widths = {tensor.name: int(tensor.shape[0]) for tensor in gguf.GGUFReader(source).tensors if len(tensor.shape) == 2}
    ones = (ctypes.c_float * max(widths.values()))(*[1.0] * max(widths.values()))
    rows = [(name.encode(), ones, width) for name, width in widths.items()]
    return (lib.llama_model_imatrix_data * (len(rows) + 1))(*rows)  # ends with an empty one


if __name__ == "__main__":
    requantize(sys.argv[1], sys.argv[2], sys.argv[3])
