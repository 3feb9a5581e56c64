"""Files of a prefix cache: private, whole, no links, one writer."""

import os
import stat
from pathlib import Path

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.disk_cache.entry import MAGIC, DamagedEntryError
from splitfuse.engine.extras.disk_cache.entry_folder import EntryFolder
from splitfuse.engine.private_file import MARKER

TENANT = f"{0:032x}/{1:032x}"
PATH, OTHER = f"{TENANT}/{2:040x}", f"{TENANT}/{3:040x}"
DATA = MAGIC + b"0123456789" * 100


@pytest.fixture
def folder(tmp_path: Path) -> EntryFolder:
    made = EntryFolder(tmp_path / "cache")
    made.write(PATH, [DATA[:300], DATA[300:]], used_ns=10**9)
    return made


def read(folder: EntryFolder, *, path: str = PATH, num_bytes: int = len(DATA)) -> bytearray | None:
    data = bytearray(num_bytes)
    return data if folder.read(path, memoryview(data), used_ns=2 * 10**9) else None


def test_a_file_comes_back_private(folder: EntryFolder, tmp_path: Path) -> None:
    file = tmp_path / "cache" / PATH
    assert read(folder) == DATA
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {stat.S_IMODE(parent.stat().st_mode) for parent in list(file.parents)[:3]} == {0o700}
    assert file.stat().st_mtime_ns == 2 * 10**9


def test_no_file_is_a_miss(folder: EntryFolder) -> None:
    assert read(folder, path=OTHER) is None
    assert folder.exists(PATH)
    folder.remove(PATH)
    assert not folder.exists(PATH)


def test_what_is_no_private_file_of_that_size_is_refused(folder: EntryFolder, tmp_path: Path) -> None:
    file = tmp_path / "cache" / PATH
    with pytest.raises(DamagedEntryError, match="bytes"):
        read(folder, num_bytes=len(DATA) - 1)
    file.chmod(0o622)
    with pytest.raises(DamagedEntryError, match="others"):
        read(folder)
    file.rename(file.with_name("target"))
    file.symlink_to("target")
    with pytest.raises(DamagedEntryError, match="opened"):
        read(folder)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DamagedEntryError, match="no file"):
        read(folder)
    file.unlink()
    file.mkdir()
    with pytest.raises(DamagedEntryError, match="no file"):
        read(folder)
    folder.remove(PATH)
    assert file.exists(), "no entry, so somebody's"
    with pytest.raises(FileExistsError):
        folder.write(PATH, [DATA], used_ns=0)


def test_a_failed_write_leaves_nothing(folder: EntryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="space"):
            folder.write(OTHER, [DATA], used_ns=0)
    assert [entry.path for entry in folder.scan()] == [PATH]
    assert len(list((tmp_path / "cache").glob("*/*/*"))) == 1


def test_a_scan_deletes_the_drafts_of_killed_processes(folder: EntryFolder, tmp_path: Path) -> None:
    draft = tmp_path / "cache" / f"{OTHER}.draft"
    draft.write_bytes(DATA[:10])
    assert [tuple(entry) for entry in folder.scan()] == [(PATH, len(DATA), 10**9)]
    assert not draft.exists()


def test_one_writes_at_a_time(folder: EntryFolder, tmp_path: Path) -> None:
    other = EntryFolder(tmp_path / "cache")
    assert folder.try_to_write()
    assert not other.try_to_write()
    assert (folder.is_writer, other.is_writer) == (True, False)
    assert read(other) == DATA
    folder.close()
    assert other.try_to_write()
    other.close()


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("open", "link", "file"):
        with pytest.raises(ConfigError, match="--prefix-cache-dir"):
            EntryFolder(tmp_path / name)


def test_an_earlier_versions_folder_is_adopted(folder: EntryFolder, tmp_path: Path) -> None:
    folder.try_to_write()
    folder.close()
    (tmp_path / "cache" / MARKER).unlink()
    for _ in range(2):
        assert read(EntryFolder(tmp_path / "cache")) == DATA
        assert (tmp_path / "cache" / MARKER).exists()


@pytest.mark.parametrize("name", ["photo.jpg", PATH, f"{TENANT}/photo.jpg", f"{TENANT}/{5:040x}.draft", "writer.lock"])
def test_a_folder_with_files_of_others_is_refused(name: str, folder: EntryFolder, tmp_path: Path) -> None:
    (tmp_path / "cache" / MARKER).unlink()
    (tmp_path / "cache" / name).write_bytes(b"theirs")
    with pytest.raises(
        ConfigError, match=f"holds others' files .{name}.; name a new folder, such as --prefix-cache-dir"
    ):
        EntryFolder(tmp_path / "cache")
    assert not (tmp_path / "cache" / MARKER).exists()


def test_roots_and_homes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for path in (Path("/"), Path("/proc"), tmp_path, tmp_path / "user"):
        with pytest.raises(ConfigError, match="a mount point, or holds your home folder; name a new folder"):
            EntryFolder(path)
    EntryFolder(tmp_path / "user" / "cache")
