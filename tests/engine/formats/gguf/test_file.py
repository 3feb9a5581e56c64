"""Headers read like with the `gguf` package; a header that contradicts its file is refused."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_files import write_gguf

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.formats.gguf.file import Strings, read_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, "llama-gqa-tied", kind=gguf.GGMLQuantizationType.Q8_0)
    return path


def test_it_agrees_with_the_gguf_package(path: Path) -> None:
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert {
        name: list(value) if not isinstance(value, str | float | int) else value
        for name, value in ours.metadata.items()
    } == fields
    assert len(ours.tensors) == len(theirs.tensors)
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(reversed(tensor.shape.tolist()))
        assert (found.type.name, found.offset, found.num_bytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )


def test_arrays_of_strings_are_decoded_one_by_one(path: Path) -> None:
    tokens = read_gguf(path).metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, Strings)
    assert (len(tokens), tokens[0], list(tokens)[1]) == (271, "<bos>", "<eos>")


def header(*, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def tensor(name: str = "a", *, dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def one(tensor: bytes, *, data: int = 128) -> bytes:
    file = header(tensors=1, rest=tensor)
    return file + bytes(-len(file) % 32 + data)


def key(kind: int, value: bytes) -> bytes:
    return header(keys=1, rest=string("k") + struct.pack("<I", kind) + value)


@pytest.mark.parametrize(("block_bytes", "name"), [(18 / 64, "Q2_0"), (34 / 128, "Q2_0_G128")])
def test_the_place_of_the_next_tensor_tells_a_forks_blocks(block_bytes: float, name: str, tmp_path: Path) -> None:
    num_bytes = int(block_bytes * 64 * 128)
    rest = tensor("a", dims=(128, 64), kind=42) + tensor("b", dims=(128, 64), kind=42, offset=num_bytes)
    file = header(tensors=2, rest=rest)
    path = tmp_path / "model.gguf"
    path.write_bytes(file + bytes(-len(file) % 32 + 2 * num_bytes))
    assert [info.type.name for info in read_gguf(path).tensors.values()] == [name, name]


HOSTILE: list[tuple[bytes, str]] = [
    (b"", "not begin with GGUF|does not end"),
    (b"GGUF", "does not end"),
    (b"GGUF" + struct.pack("<I", 1), "version 1; versions 2 and 3"),
    (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    (header(tensors=2**63), f"{2**63} tensors"),
    (header(keys=2**64 - 1), f"{2**64 - 1} keys"),
    (header(keys=9), "does not end"),
    (key(8, struct.pack("<Q", 2**63)), "does not end"),
    (key(9, struct.pack("<IQ", 8, 2**63)), "does not end"),
    (key(9, struct.pack("<IQ", 4, 2**63)), "does not end"),
    (key(9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 4, 0)), "type 9 is not known"),
    (key(9, struct.pack("<IQQ", 8, 1, 2**64 - 1)), "does not end"),
    (key(77, b""), "type 77 is not known"),
    (key(8, struct.pack("<Q", 2) + b"\xff\xff"), "decode"),
    (header(keys=2, rest=(string("k") + struct.pack("<IB", 0, 1)) * 2), "'k' stands there twice"),
    (header(keys=1, rest=string("general.alignment") + struct.pack("<II", 4, 0)), "general.alignment"),
    (header(keys=1, rest=string("general.alignment") + struct.pack("<II", 4, 24)), "general.alignment"),
    (header(keys=1, rest=string("general.alignment") + struct.pack("<II", 4, 2**31)), "general.alignment"),
    (one(tensor(dims=())), "0 dimensions"),
    (one(tensor(dims=(1,) * 5)), "5 dimensions"),
    (one(tensor(dims=(0,))), r"dimensions \[0\]"),
    (one(tensor(dims=(33,), kind=8)), r"type Q8_0 has dimensions \[33\]"),
    (one(tensor(dims=(2**63, 2**63))), "ends at byte"),
    (one(tensor(kind=9)), "type Q8_1; known: F32"),
    (one(tensor(kind=15)), "type Q8_K; known: F32"),
    *[(one(tensor(kind=24 + index)), f"type I{8 * 2**index}; known: F32") for index in range(4)],
    (one(tensor(kind=999)), "type number 999"),
    (one(tensor(offset=2**63)), "ends at byte"),
    (one(tensor(offset=8), data=256), "not aligned"),
    (one(tensor(), data=127), "ends at byte"),
    (header(tensors=2, rest=tensor() + tensor("b")) + bytes(512), "'b' begins at byte .*, within 'a'"),
    (header(tensors=2, rest=tensor() + tensor(offset=128)) + bytes(512), "'a' stands there twice"),
]


@pytest.mark.parametrize(("content", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_file_cannot_hold_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_gguf(tmp_path / "m.gguf")


def test_a_header_longer_than_usual_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_token_list([f"token {index} {'x' * 90}" for index in range(40_000)])
    writer.add_tensor("a", np.ones(32, dtype=np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    file = read_gguf(tmp_path / "m.gguf")
    assert file.metadata["tokenizer.ggml.tokens"][39_999].startswith("token 39999 ")
    assert file.tensors["a"].shape == (32,)


def test_a_string_may_be_as_large_as_the_header(tmp_path: Path) -> None:
    """Read a whole tokenizer.json under `tokenizer.huggingface.json`, which the specification allows."""
    text = "x" * (5 * 2**20)
    (tmp_path / "m.gguf").write_bytes(key(8, string(text)))
    assert read_gguf(tmp_path / "m.gguf").metadata["k"] == text


def test_a_file_of_nothing_but_empty_strings_is_refused_in_time(tmp_path: Path) -> None:
    """Read the most work that a header can cause: 32 MiB of empty strings."""
    (tmp_path / "m.gguf").write_bytes(key(9, struct.pack("<IQ", 8, 5_000_000)) + bytes(48 * 2**20))
    with pytest.raises(ConfigError, match="within 32 MiB"):
        read_gguf(tmp_path / "m.gguf")
