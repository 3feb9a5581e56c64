"""Mutations of a file's bytes: `mutation(rng, content, header)` changes `content` in place.

`header`: number of bytes at the beginning where most counts, lengths and offsets stand.
"""

import random
import struct
from collections.abc import Callable

Mutation = Callable[[random.Random, bytearray, int], None]
NUMBERS = (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)


def flip_bits(rng: random.Random, content: bytearray, header: int) -> None:
    """Flip a few bits of the header."""
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(header)] ^= 1 << rng.randrange(8)


def flip_bits_anywhere(rng: random.Random, content: bytearray, header: int) -> None:
    """Flip a few bits."""
    flip_bits(rng, content, len(content))


def cut(rng: random.Random, content: bytearray, header: int) -> None:
    """Truncate."""
    del content[rng.choice((rng.randrange(header), rng.randrange(len(content)))) :]


def put_number(rng: random.Random, content: bytearray, header: int) -> None:
    """Overwrite a place where a count, a length, an offset or a type may be."""
    size, at = rng.choice((4, 8)), rng.choice((8, 16, rng.randrange(header)))
    content[at : at + size] = (rng.choice(NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little")


def grow_number(rng: random.Random, content: bytearray, header: int) -> None:
    """Multiply an existing number at any place."""
    at = rng.choice([at for at in range(8, header - 8) if content[at] and content[at + 1 : at + 4] == b"\0\0\0"])
    content[at : at + 4] = struct.pack("<I", content[at] << rng.randrange(1, 24))


def change_digits(rng: random.Random, content: bytearray, header: int) -> None:
    """Change digits of numbers that are text."""
    places = [at for at in range(header) if 48 <= content[at] <= 57]
    for at in rng.sample(places, min(len(places), rng.randint(1, 3))):
        content[at : at + rng.randint(0, 1)] = str(rng.choice(NUMBERS)).encode()


def nest_arrays(rng: random.Random, content: bytearray, header: int) -> None:
    """Make the tokens of a GGUF file arrays of arrays."""
    at = content.index(b"tokenizer.ggml.tokens") + 21
    content[at : at + 16] = struct.pack("<IIQ", 9, 9, rng.choice(NUMBERS))
    content[at + 16 : at + 16] = struct.pack("<IQ", 9, 1) * rng.choice((1, 1000, 100_000))


def repeat_a_part(rng: random.Random, content: bytearray, header: int) -> None:
    """Insert a copy of a part of the header."""
    begin = rng.randrange(header)
    content[begin:begin] = content[begin : begin + rng.randint(1, 200)]


GGUF: list[Mutation] = [
    flip_bits, flip_bits, flip_bits_anywhere, cut, put_number, put_number, grow_number, nest_arrays, repeat_a_part,
]  # fmt: skip
SAFETENSORS: list[Mutation] = [
    flip_bits, flip_bits, flip_bits_anywhere, cut, put_number, put_number, repeat_a_part, change_digits, change_digits,
]  # fmt: skip
TEXT: list[Mutation] = [flip_bits, cut, change_digits, repeat_a_part]
