"""Descriptions of models on disk: types, family and sizes of GGUF files and folders."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.formats.description import describe

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def written(path: Path, *, file_type: int | None) -> Path:
    """Write a file whose embedding in Q8_0 has most of the bytes."""
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_name("Gemma\x07 3")
    if file_type is not None:
        writer.add_file_type(file_type)
    for name, rows in (("token_embd.weight", 2_000), ("output_norm.weight", 64)):
        values = np.zeros((rows, 512), np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("file_type", "types", "bits"), [(15, "Q4_K_M", 4), (None, "Q8_0", 8), (999, "Q8_0", 8), (4, "Q8_0", 8)]
)
def test_a_file_says_its_types(tmp_path: Path, file_type: int | None, types: str, bits: int) -> None:
    path = written(tmp_path / "a.gguf", file_type=file_type)
    found = describe(path)
    assert (found.format, found.family, found.types, found.parameters) == ("gguf", "gemma3", types, "1.06M")
    assert found.num_bytes == path.stat().st_size
    assert found.metadata["general.name"] == "Gemma\x07 3"
    assert str(found) == f"Gemma 3, {bits}-bit GGUF ({types}), 1.06 M parameters"


def test_the_names_of_types_are_llama_cpps(tmp_path: Path) -> None:
    for kind in gguf.LlamaFileType:
        if kind is not gguf.LlamaFileType.GUESSED:
            name = kind.name.removeprefix("ALL_").removeprefix("MOSTLY_")
            found = describe(written(tmp_path / f"{kind}.gguf", file_type=kind.value)).types
            assert found == name, kind


def test_a_folder_says_its_dtype_and_size() -> None:
    found = describe(DEMO_FOLDER)
    assert (found.format, found.family, found.types, found.parameters) == ("safetensors", "llama", "bfloat16", "5.4M")
    assert found.num_bytes == (DEMO_FOLDER / "model.safetensors").stat().st_size
