"""Mutations of the files of a prefix cache: torn, foreign, stale and hostile ones, each drawn from a seed."""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

Mutation = Callable[[random.Random, Path, Sequence[bytes]], None]


def flipped_bit(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def overwritten_run(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice((1, 8, 64, 4096)))
    old = bytes(data[start:end])
    data[start:end] = rng.choice((bytes(end - start), b"\xff" * (end - start), rng.randbytes(end - start)))
    if bytes(data[start:end]) == old:
        data[start] ^= 1
    path.write_bytes(data)


def torn(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def torn_to_zeros(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    """What a power cut can leave: the size is right, the end is not."""
    size = path.stat().st_size
    os.truncate(path, rng.randrange(size // 2))
    os.truncate(path, size)


def lengthened(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.choice((1, 16, 5000))))


def replaced_by_another(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    """Another block's entry, whole and well formed."""
    old = path.read_bytes()
    path.write_bytes(rng.choice([other for other in others if other != old]))


def garbage(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size))


def huge_length(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    data = bytearray(path.read_bytes())
    data[8:16] = rng.choice((2**64 - 1, 2**63, 2**40, 0)).to_bytes(8, "little")
    path.write_bytes(data)


def other_version(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    data = bytearray(path.read_bytes())
    data[rng.choice((4, 5, 6, 7))] ^= rng.randrange(1, 256)
    path.write_bytes(data)


def link(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    """A link, even to the right contents: somebody else put it there."""
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


def pipe(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def folder(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    path.unlink()
    path.mkdir()


def writable_by_others(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    path.chmod(rng.choice((0o666, 0o622, 0o620)))


def gone(rng: random.Random, path: Path, others: Sequence[bytes]) -> None:
    path.unlink()


MUTATIONS: tuple[Mutation, ...] = (
    flipped_bit, overwritten_run, torn, torn_to_zeros, lengthened, replaced_by_another, garbage, huge_length,
    other_version, link, pipe, folder, writable_by_others, gone,
)  # fmt: skip


class SavedFiles:
    """Files of a folder as they were, to mutate and to put back."""

    def __init__(self, root: Path) -> None:
        self._contents = {path: path.read_bytes() for path in sorted(root.glob("*/*/*")) if path.is_file()}
        self.paths = list(self._contents)

    def mutate(self, rng: random.Random) -> str:
        """Mutate one to three files. Returns what was done."""
        done = []
        for path in rng.sample(self.paths, rng.choice((1, 1, 1, 2, 3))):
            mutation = rng.choice(MUTATIONS)
            mutation(rng, path, list(self._contents.values()))
            done.append(f"{mutation.__name__} {self.paths.index(path)}")
        return ", ".join(done)

    def restore(self) -> None:
        """Put all files back."""
        for folder in {path.parent for path in self.paths}:
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                else:
                    path.unlink()
        for path, content in self._contents.items():
            path.write_bytes(content)
            path.chmod(0o600)
