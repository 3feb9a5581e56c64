"""ModelDescription: what a model's files say of the model, for people and for lists of models. Imports no torch."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from .gguf.file import GgufFile, read_gguf
from .json_file import read_json

# llama.cpp's names of general.file_type, in the order of its numbers (llama.h, where each begins with "mostly").
_FILE_TYPES = (
    "F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ2_XXS "
    "IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 - - - TQ1_0 "
    "TQ2_0 MXFP4_MOE NVFP4 Q1_0"
)
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """Facts about a model on disk. `family`: general.architecture of a GGUF file, model_type of a folder."""

    name: str
    format: str  # gguf or safetensors
    family: str
    types: str  # Q4_K_M, bfloat16, awq
    num_parameters: int
    num_bytes: int
    held: str = ""  # remark on the memory of these types
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)  # a GGUF's single values but the tokenizer's

    @property
    def parameters(self) -> str:
        """Number of parameters, as in 135M or 7.62B; empty if unknown."""
        millions = self.num_parameters / 1e6
        return f"{millions / 1000:.3g}B" if millions >= 1000 else f"{millions:.3g}M" if millions else ""

    def __str__(self) -> str:
        """Return one line for a GGUF file: its name, types and size."""
        bits, size = re.search(r"\d+", self.types), f"{self.parameters[:-1]} {self.parameters[-1:]}"
        return f"{self.name}, {bits[0] if bits else ''}-bit GGUF ({self.types}{self.held}), {size} parameters"


def describe(path: Path) -> ModelDescription:
    """Describe a model's folder or GGUF file from its headers. Raises ConfigError."""
    return describe_gguf(read_gguf(path)) if path.is_file() else _describe_folder(path)


def describe_gguf(file: GgufFile) -> ModelDescription:
    """Describe a GGUF file. Its types are those that the file names, else the type of most of its bytes."""
    name, infos = str(file.metadata.get("general.name", "no name")), file.tensors.values()
    bytes_of = {info.type: 0 for info in infos}
    for info in infos:
        bytes_of[info.type] += info.num_bytes
    most = max(bytes_of, key=lambda kind: bytes_of[kind], default=None)
    is_wider = most is not None and most.bits_on_cpu > 1.1 * 8 * most.block_bytes / most.block_values
    number, names = file.metadata.get("general.file_type"), _FILE_TYPES.split()
    known = names[number] if isinstance(number, int) and 0 <= number < len(names) else "-"
    return ModelDescription(
        name="".join(char for char in name[:80] if char.isprintable()),  # printable on a terminal
        format="gguf",
        family=str(file.metadata.get("general.architecture", "unknown")),
        types=known if known != "-" or most is None else most.name,
        held=f", {most.bits_on_cpu:.2f} bits in a CPU's memory" if most is not None and is_wider else "",
        num_parameters=sum(prod(info.shape) for info in infos),
        num_bytes=sum(part.path.stat().st_size for part in file.files),
        metadata={
            key: value
            for key, value in file.metadata.items()
            if isinstance(value, str | int | float) and not key.startswith("tokenizer.")
        },
    )


def unread_beside(file: GgufFile) -> str:
    """Return a remark on the encoder of images beside a model; empty if there is none."""
    images = next((path.name for path in sorted(file.path.parent.glob("*mmproj*.gguf"))), None)
    return f"; {images} stays unread: images are not served" if images else ""


def _describe_folder(folder: Path) -> ModelDescription:
    fields = read_json(folder / "config.json")
    quantization = fields.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    files = sorted(folder.glob("*.safetensors"))
    return ModelDescription(
        name=folder.name,
        format="safetensors",
        family=str(fields.get("model_type") or "unknown"),
        types=str(method or fields.get("dtype") or fields.get("torch_dtype") or ""),
        num_parameters=0 if method else sum(map(_num_values, files)),
        num_bytes=sum(file.stat().st_size for file in files),
    )


def _num_values(file: Path) -> int:
    """Return the number of values of a safetensors file; 0 if its header cannot be read."""
    try:
        with file.open("rb") as reader:
            header = json.loads(reader.read(int.from_bytes(reader.read(8), "little") % _MAX_HEADER_BYTES))
        return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, LookupError, TypeError):
        return 0
