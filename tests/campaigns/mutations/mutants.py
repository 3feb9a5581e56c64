"""Mutant: a model with one changed file, determined by its number."""

import random
from dataclasses import dataclass
from pathlib import Path

from byte_mutations import GGUF, SAFETENSORS, TEXT
from gguf_mutations import changed_parts
from json_mutations import changed_header, changed_json, changed_tokenizer
from mutations.originals import Original

GGUF_SHARE = 6  # of so many mutants, all but one are of GGUF files
_HEADER_BYTES = 6000


@dataclass(frozen=True)
class Mutant:
    """Mutant: file `name` of a model gets `content`. `is_short`: load it with a short limit of lengths."""

    number: int
    original: Original
    name: str
    kind: str
    content: bytes
    is_short: bool

    def written_to(self, target: Path) -> Path:
        """Write the whole model. Returns its path."""
        path = self.original.copied_to(target)
        (target / self.name).write_bytes(self.content)
        return path


def mutant(number: int, folders: list[Original], ggufs: list[Original]) -> Mutant:
    """Return the mutant of this number."""
    rng = random.Random(number)
    original = rng.choice(ggufs if number % GGUF_SHARE else folders)
    # Weights' files are large in number where a model is sharded; every kind of file has its share.
    kinds = sorted({_kind(name) for name in original.files})
    kind = rng.choice(kinds)
    name = rng.choice([name for name in original.files if _kind(name) == kind])
    content = (original.folder / name).read_bytes()
    return Mutant(number, original, name, kind, _changed(rng, kind, content), rng.random() < 0.5)


def _kind(name: str) -> str:
    return "model.safetensors" if name.endswith(".safetensors") else name


def _changed(rng: random.Random, kind: str, content: bytes) -> bytes:
    if kind.endswith(".gguf") and rng.random() < 0.6:
        return changed_parts(rng, content)
    if kind.endswith(".safetensors") and rng.random() < 0.4:
        return changed_header(rng, content)
    if kind == "tokenizer.json" and rng.random() < 0.6:
        return changed_tokenizer(rng, content)
    if kind.endswith(".json") and rng.random() < 0.8:
        return changed_json(rng, content)
    mutations = GGUF if kind.endswith(".gguf") else SAFETENSORS if kind.endswith(".safetensors") else TEXT
    changed = bytearray(content)
    length = 8 + int.from_bytes(content[:8], "little") if kind.endswith(".safetensors") else _HEADER_BYTES
    rng.choice(mutations)(rng, changed, min(length, len(content)))
    return bytes(changed)
