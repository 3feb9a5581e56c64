"""TensorType: storage of a tensor's values in GGUF: blocks of a number of values and bytes. Imports no torch."""

from typing import NamedTuple


class TensorType(NamedTuple):
    """Type of a tensor that is supported."""

    name: str
    block_values: int
    block_bytes: int
    bits_on_cpu: float = 0  # of a value in a CPU's memory, with its scales; 0: as in the file

    @property
    def is_quantized(self) -> bool:
        """True if several values share a scale."""
        return self.block_values > 1

    def num_bytes(self, num_values: int) -> int:
        """Return the bytes of this many values, which fill whole blocks."""
        return num_values // self.block_values * self.block_bytes


# Number in a file -> type (https://github.com/ggml-org/ggml/blob/master/include/ggml.h, enum ggml_type).
TENSOR_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84, 3.125),
    11: TensorType("Q3_K", 256, 110, 3.5625),
    12: TensorType("Q4_K", 256, 144, 4.625),
    13: TensorType("Q5_K", 256, 176, 5.625),
    14: TensorType("Q6_K", 256, 210),
    16: TensorType("IQ2_XXS", 256, 66, 3.3125),
    17: TensorType("IQ2_XS", 256, 74, 3.5625),
    18: TensorType("IQ3_XXS", 256, 98, 4.3125),
    19: TensorType("IQ1_S", 256, 50, 3.3125),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110, 4.3125),
    22: TensorType("IQ2_S", 256, 82, 3.5625),
    23: TensorType("IQ4_XS", 256, 136, 4.3125),
    29: TensorType("IQ1_M", 256, 56, 3.5625),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54, 2.0625),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36, 5),
    41: TensorType("Q1_0", 128, 18, 2.125),
    42: TensorType("Q2_0", 64, 18),
}
# Number -> type of the same number in a fork whose files are published: ternary models in blocks of 128.
FORKED_TYPES = {42: TensorType("Q2_0_G128", 128, 34)}
TYPES_BY_NAME = {kind.name: kind for kind in (*TENSOR_TYPES.values(), *FORKED_TYPES.values())}
# Types that no published weights have: integers, and activations of llama.cpp's products.
_OTHERS = {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}


def type_name(number: int) -> str:
    """Return the name of a type for messages."""
    return TENSOR_TYPES[number].name if number in TENSOR_TYPES else _OTHERS.get(number, f"number {number}")
