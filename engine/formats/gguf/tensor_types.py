"""TensorType: storage of a tensor's values in GGUF: blocks of a number of values and bytes. Imports no torch."""

from typing import NamedTuple


class TensorType(NamedTuple):
    """Type of a tensor that is supported."""

    name: str
    block_values: int
    block_bytes: int

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
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    20: TensorType("IQ4_NL", 32, 18),
    30: TensorType("BF16", 1, 2),
    39: TensorType("MXFP4", 32, 17),
}
# Unsupported types that are common; for messages.
_OTHERS = {
    10: "Q2_K", 11: "Q3_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip


def type_name(number: int) -> str:
    """Return the name of a type for messages."""
    return TENSOR_TYPES[number].name if number in TENSOR_TYPES else _OTHERS.get(number, f"number {number}")
