"""A file is hashed once per change."""

import hashlib
from pathlib import Path

import pytest

from splitfuse.engine.extras.receipts.file_hashes import FileHashes


def test_a_file_is_read_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, memory = tmp_path / "weights", tmp_path / "cache/hashes.json"
    path.write_bytes(b"one")
    digest = FileHashes(memory).sha256(path)
    assert digest == hashlib.sha256(b"one").hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)
        assert FileHashes(memory).sha256(path) == digest
    path.write_bytes(b"other")
    assert FileHashes(memory).sha256(path) == hashlib.sha256(b"other").hexdigest()


@pytest.mark.parametrize("text", ["", "[]", '{"x": 1', "null"])
def test_a_damaged_memory_is_written_anew(tmp_path: Path, text: str) -> None:
    path, memory = tmp_path / "weights", tmp_path / "hashes.json"
    path.write_bytes(b"one")
    memory.write_text(text)
    assert FileHashes(memory).sha256(path) == FileHashes(memory).sha256(path) == hashlib.sha256(b"one").hexdigest()


def test_without_a_place_to_remember_it_hashes(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"one")
    assert FileHashes(Path("/dev/null/hashes")).sha256(tmp_path / "weights") == hashlib.sha256(b"one").hexdigest()
