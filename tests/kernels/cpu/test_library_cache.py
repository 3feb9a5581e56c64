"""The cache loads only libraries that were built here, whatever it contains, and one process builds at a time."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from splitfuse.kernels.cpu.compilation import find_compiler
from splitfuse.kernels.cpu.library_cache import LibraryCache

NAME = "cpu-test.so"
COMPILER = find_compiler() or ""


def compiled(folder: Path, *, answer: int = 42, name: str = "answer") -> Path:
    """Compile a library of one function."""
    source = f'extern "C" int {name}() {{ return {answer}; }}'
    command = [COMPILER, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(folder / "tiny.so")]
    subprocess.run(command, input=source, text=True, check=True)
    return folder / "tiny.so"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    if not COMPILER:
        pytest.skip("needs a C++ compiler")
    return compiled(tmp_path_factory.mktemp("tiny")).read_bytes()


class Builder:
    """Compiler that has the library ready."""

    def __init__(self, library: bytes) -> None:
        self.library = library
        self.num_builds = 0

    def __call__(self, folder: Path) -> Path:
        self.num_builds += 1
        (folder / "native.so").write_bytes(self.library)
        return folder / "native.so"


@pytest.fixture
def builder(library: bytes) -> Builder:
    return Builder(library)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "splitfuse" / "native"


def answer_of(folder: Path, builder: Any) -> int:
    answer: int = LibraryCache(folder).load(NAME, builder).answer()
    return answer


def test_it_is_built_once(folder: Path, builder: Builder) -> None:
    assert [answer_of(folder, builder) for _ in range(3)] == [42, 42, 42]
    assert builder.num_builds == 1
    assert {path.name for path in folder.iterdir()} == {NAME, f"{NAME}.sha256", "lock"}
    assert {path.stat().st_mode & 0o077 for path in (folder, folder / NAME)} == {0}


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "garbage": lambda path: path.write_bytes(b"\xff" * 5000),
    "one bit": lambda path: path.write_bytes(with_one_bit_changed(path.read_bytes())),
    "another library": lambda path: path.write_bytes(compiled(path.parent, name="other").read_bytes()),
    "without digest": lambda path: path.with_name(f"{NAME}.sha256").unlink(),
    "damaged digest": lambda path: path.with_name(f"{NAME}.sha256").write_bytes(b"\xff\x00"),
    "writable by others": lambda path: path.chmod(0o666),
}


def with_one_bit_changed(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_as_it_was_built_is_built_again(
    folder: Path, builder: Builder, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert answer_of(folder, builder) == 42
    DAMAGES[damage](folder / NAME)
    assert [answer_of(folder, builder) for _ in range(2)] == [42, 42]
    assert builder.num_builds == 2
    assert caplog.text.count("built again") == (damage != "without digest"), "said once, with the reason"


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a path to another user or, if this user may not do that, make this process another user's."""

    def give_away(path: Path) -> None:
        try:
            os.chown(path, 12345, -1)
        except PermissionError:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)

    return give_away


def test_a_library_of_another_user_is_not_loaded(folder: Path, builder: Builder, foreign: Any) -> None:
    if os.geteuid():
        pytest.skip("needs root to give a file away and keep its folder")
    answer_of(folder, builder)
    foreign(folder / NAME)
    assert answer_of(folder, builder) == 42
    assert builder.num_builds == 2
    assert (folder / NAME).stat().st_uid == 0


def test_nothing_is_loaded_from_the_folder_of_another_user(folder: Path, builder: Builder, foreign: Any) -> None:
    answer_of(folder, builder)
    foreign(folder)
    with pytest.raises(PermissionError, match=r"another user.*XDG_CACHE_HOME"):
        answer_of(folder, builder)


def test_nothing_is_loaded_from_a_folder_that_others_can_write_to(folder: Path, builder: Builder) -> None:
    answer_of(folder, builder)
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match=r"other users can write.*XDG_CACHE_HOME"):
        answer_of(folder, builder)


def test_a_file_that_is_cut_later_does_not_reach_what_is_loaded(folder: Path, builder: Builder) -> None:
    library = LibraryCache(folder).load(NAME, builder)
    if sys.platform != "linux":
        pytest.skip("needs Linux, where a library can be loaded from memory")
    assert str(folder) not in Path("/proc/self/maps").read_text(), "a mapped file that is cut is a SIGBUS"
    os.truncate(folder / NAME, 0)
    assert library.answer() == 42


def test_two_libraries_are_not_taken_for_one(folder: Path, library: bytes) -> None:
    LibraryCache(folder).load(NAME, Builder(library))
    other = LibraryCache(folder).load("cpu-other.so", lambda scratch: compiled(scratch, answer=43))
    assert other.answer() == 43


# A process that builds: it prints a line, then waits for one, or for its end.
BUILD = f"""
import pathlib, sys
from splitfuse.kernels.cpu.library_cache import LibraryCache

def build(folder):
    print("building", flush=True)
    sys.stdin.readline()
    library = folder / "native.so"
    library.write_bytes(pathlib.Path(sys.argv[2]).read_bytes())
    return library

print(LibraryCache(pathlib.Path(sys.argv[1])).load("{NAME}", build).answer(), flush=True)
"""


@pytest.fixture
def building(folder: Path, library: bytes, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process and wait until it is in the middle of its build."""
    (tmp_path / "tiny.so").write_bytes(library)
    command = [sys.executable, "-c", BUILD, str(folder), str(tmp_path / "tiny.so")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        yield process
        process.kill()


def test_a_build_that_was_killed_is_cleared_away(
    folder: Path, builder: Builder, building: subprocess.Popen[str]
) -> None:
    assert list(folder.glob("build-*"))
    building.send_signal(signal.SIGKILL)
    building.wait()
    assert answer_of(folder, builder) == 42
    assert builder.num_builds == 1
    assert not list(folder.glob("build-*"))


def test_of_two_first_starts_one_builds_and_the_other_waits(
    folder: Path, builder: Builder, building: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(answer_of(folder, builder)))
    waits = threading.Event()
    _call_when_logged(caplog, "waiting for it", waits)
    waiting.start()
    assert waits.wait(timeout=60)
    out, _ = building.communicate("go on\n", timeout=60)
    waiting.join(timeout=60)
    assert (out, answers, builder.num_builds) == ("42\n", [42], 0)


def _call_when_logged(caplog: pytest.LogCaptureFixture, text: str, event: threading.Event) -> None:
    def seen(record: Any) -> bool:
        if text in record.getMessage():
            event.set()
        return True

    caplog.handler.addFilter(seen)


def test_a_wait_has_an_end(folder: Path, builder: Builder, building: subprocess.Popen[str]) -> None:
    with pytest.raises(TimeoutError, match="lock"):
        LibraryCache(folder, max_wait_s=0.1).load(NAME, builder)


def test_a_compiler_that_fails_leaves_nothing(folder: Path, builder: Builder) -> None:
    def failing(scratch: Path) -> Path:
        (scratch / "half.o").touch()
        raise OSError("no such instruction")

    with pytest.raises(OSError, match="no such instruction"):
        answer_of(folder, failing)
    assert [path.name for path in folder.iterdir()] == ["lock"]
    assert answer_of(folder, builder) == 42


def test_a_library_that_does_not_load_is_an_os_error(folder: Path) -> None:
    with pytest.raises(OSError, match=r"file too short|invalid ELF header"):
        answer_of(folder, Builder(b"no library"))
