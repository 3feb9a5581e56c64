"""Model files with deliberate changes load, or are refused by one line, soon and in little memory.

A longer run: SPLITFUSE_TEST_MUTATIONS=10000 pytest tests/engine/behaviour/test_hostile_files.py
"""

import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import write_gguf
from tiny_models import save_model

from splitfuse.engine import LLM
from splitfuse.engine.errors import ConfigError

NUM_MUTATIONS = int(os.environ.get("SPLITFUSE_TEST_MUTATIONS", "150"))
MAX_SECONDS = 2.0  # CPU time, because this process shares its cores
# Memory beyond twice the file: loading any model of this size, and the allocator's reserve.
FREE_BYTES = 48 * 2**20

Mutation = Callable[[random.Random, bytearray, int], None]
_NUMBERS = (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)


def flip_bits(rng: random.Random, content: bytearray, header: int) -> None:
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(header)] ^= 1 << rng.randrange(8)


def flip_bits_anywhere(rng: random.Random, content: bytearray, header: int) -> None:
    flip_bits(rng, content, len(content))


def cut(rng: random.Random, content: bytearray, header: int) -> None:
    del content[rng.choice((rng.randrange(header), rng.randrange(len(content)))) :]


def put_number(rng: random.Random, content: bytearray, header: int) -> None:
    """Overwrite a place where a count, a length, an offset or a type may be."""
    size, at = rng.choice((4, 8)), rng.choice((8, 16, rng.randrange(header)))
    content[at : at + size] = (rng.choice(_NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little")


def grow_number(rng: random.Random, content: bytearray, header: int) -> None:
    """Multiply an existing number at any place."""
    at = rng.choice([at for at in range(8, header - 8) if content[at] and content[at + 1 : at + 4] == b"\0\0\0"])
    content[at : at + 4] = struct.pack("<I", content[at] << rng.randrange(1, 24))


def change_digits(rng: random.Random, content: bytearray, header: int) -> None:
    """Change digits of numbers that are text."""
    places = [at for at in range(header) if 48 <= content[at] <= 57]
    for at in rng.sample(places, min(len(places), rng.randint(1, 3))):
        content[at : at + rng.randint(0, 1)] = str(rng.choice(_NUMBERS)).encode()


def nest_arrays(rng: random.Random, content: bytearray, header: int) -> None:
    at = content.index(b"tokenizer.ggml.tokens") + 21
    content[at : at + 16] = struct.pack("<IIQ", 9, 9, rng.choice(_NUMBERS))
    content[at + 16 : at + 16] = struct.pack("<IQ", 9, 1) * rng.choice((1, 1000, 100_000))


def repeat_a_part(rng: random.Random, content: bytearray, header: int) -> None:
    begin = rng.randrange(header)
    content[begin:begin] = content[begin : begin + rng.randint(1, 200)]


MUTATIONS: list[Mutation] = [
    flip_bits, flip_bits, flip_bits_anywhere, cut, put_number, put_number, grow_number, nest_arrays, repeat_a_part,
]  # fmt: skip


def load(path: Path) -> None:
    """Load the model and generate a few tokens, like a server before it is ready."""
    LLM(str(path), dtype="float32", num_kv_blocks=8, max_model_len=32)


def gguf_file(folder: Path) -> tuple[Path, int]:
    path = folder / "model.gguf"
    write_gguf(path, "llama-gqa-tied", kind=Type.Q8_0)
    return path, path.read_bytes().index(b"blk.0.attn_norm.weight") + 1500


def safetensors_file(folder: Path) -> tuple[Path, int]:
    save_model("llama-gqa-tied", folder)
    path = folder / "model.safetensors"
    return path, 8 + int.from_bytes(path.read_bytes()[:8], "little")


@pytest.fixture(params=["gguf", "safetensors"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bytes, int, list[Mutation]]:
    """File, its contents, the end of its header, and the possible mutations."""
    if request.param == "gguf":
        path, header = gguf_file(tmp_path)
        return path, path.read_bytes(), header, MUTATIONS
    path, header = safetensors_file(tmp_path)
    textual = [mutation for mutation in MUTATIONS if mutation is not nest_arrays and mutation is not grow_number]
    return path, path.read_bytes(), header, [*textual, change_digits, change_digits]


def peak_bytes() -> int:
    """Return the peak memory of this process since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def forget_peak() -> int:
    """Reset the peak and return the current memory."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc to see the peak of memory")
def test_a_changed_file_loads_or_is_refused(file: tuple[Path, bytes, int, list[Mutation]]) -> None:
    path, content, header, mutations = file
    served = path.parent if path.suffix == ".safetensors" else path
    load(served)
    refused = 0
    for case in range(NUM_MUTATIONS):
        rng = random.Random(case)
        changed = bytearray(content)
        mutation = rng.choice(mutations)
        mutation(rng, changed, header)
        path.write_bytes(changed)
        before, begin = forget_peak(), time.process_time()
        try:
            load(served)
        except ConfigError:
            refused += 1
        except BaseException as exc:
            raise AssertionError(f"case {case}, {mutation.__name__}: {exc!r}") from exc
        assert time.process_time() - begin < MAX_SECONDS, f"case {case}, {mutation.__name__}"
        assert peak_bytes() - before < 2 * len(changed) + FREE_BYTES, f"case {case}, {mutation.__name__}"
    assert refused > NUM_MUTATIONS // 3, "the mutations are meant to do harm"


def test_a_long_context_is_no_reason_to_allocate(tmp_path: Path) -> None:
    path, _ = gguf_file(tmp_path)
    content, key = path.read_bytes(), b"llama.context_length\x04\x00\x00\x00"
    at = content.index(key) + len(key)
    path.write_bytes(content[:at] + struct.pack("<I", 2**31) + content[at + 4 :])
    with pytest.raises(ConfigError, match=f"context_length {2**31}; at most"):
        LLM(str(path))
