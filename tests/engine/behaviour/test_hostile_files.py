"""Model files with deliberate changes load, or are refused by one line, soon and in little memory.

A longer run, of all files of a model: `make mutations`.
"""

import os
import random
import struct
import time
from pathlib import Path

import pytest
from byte_mutations import GGUF, SAFETENSORS, Mutation
from gguf import GGMLQuantizationType as Type
from gguf_files import write_gguf
from tiny_models import save_model

from splitfuse.engine import LLM
from splitfuse.engine.errors import ConfigError

NUM_MUTATIONS = int(os.environ.get("SPLITFUSE_TEST_MUTATIONS", "16"))
MAX_SECONDS = 2.0  # CPU time, because this process shares its cores
# Memory beyond twice the file: loading any model of this size, and the allocator's reserve.
FREE_BYTES = 48 * 2**20


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
    path, header = gguf_file(tmp_path) if request.param == "gguf" else safetensors_file(tmp_path)
    return path, path.read_bytes(), header, GGUF if request.param == "gguf" else SAFETENSORS


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
