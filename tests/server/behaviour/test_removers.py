"""Nothing is lost that another program wrote: every remover in the sources, found by walking them, meets foreign files.

A remover is a call that can delete, empty or replace a file. Each function with such a call has a row in `ROWS`: how it
runs among foreign files, or why its file cannot be a foreign one. A remover without a row fails.
"""

import ast
import os
import re
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.disk_cache.activity import Activity
from splitfuse.engine.extras.disk_cache.entry import BLOCK, MAGIC, EntryCodec, Identity
from splitfuse.engine.extras.disk_cache.entry_folder import EntryFolder
from splitfuse.engine.extras.disk_cache.write_behind import Write, WriteBehind
from splitfuse.engine.extras.receipts.file_hashes import FileHashes
from splitfuse.engine.private_file import HEAD, create_private
from splitfuse.kernels.cpu.library_cache import LibraryCache, ObjectCache
from splitfuse.server.cli import main
from splitfuse.server.commands.chat import Conversation
from splitfuse.server.process.runtime_file import announced, running_servers
from splitfuse.server.process.temporary_folder import temporary_folder
from splitfuse.server.results.durable.sqlite_store import SqliteStore

ROOT = Path(__file__).parents[3]
_PHOTO = b"\xff\xd8\xff\xe0" + bytes(3000)
_HEX = "0123456789abcdef" * 4
_REPOSITORY = "models--tiny--demo"

Scenario = Callable[[Path], None]


class Foreign:
    """Files of somebody else in a folder, and links from it to files outside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.outside = folder.parent / "outside"
        self.outside.mkdir()
        self._place(self.outside / "thesis.draft")
        for number in range(15):
            self._place(folder / "photos" / str(2020 + number % 5) / f"file{number}.bin")
        self._place(folder / "work" / "thesis" / "chapter.draft")
        for name in ("notes.json", "lock", "results.csv"):
            self._place(folder / name)
        self.link(folder / "work/linked.draft", self.outside / "thesis.draft")
        self.link(folder / "work/linked", self.outside)
        os.mkfifo(folder / "work/thesis/pipe.draft")
        (folder / "photos/2020/empty").mkdir()
        self.seen = self.look()

    def _place(self, path: Path, content: bytes = _PHOTO) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(1, 1))  # older than all else

    def link(self, path: Path, target: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def add(self, *names: str, content: bytes = _PHOTO) -> None:
        """Put more files beside those of the program."""
        for name in names:
            self._place(self._folder / name, content)
        self.seen = self.look()

    def odd(self, *names: str) -> None:
        """Put a link out of the folder, a pipe and a folder with a file, by turns, where the program has names."""
        for number, name in enumerate(names):
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if number % 3 == 0:
                self.link(path, self.outside / "thesis.draft")
            elif number % 3 == 1:
                os.mkfifo(path)
            else:
                self._place(path / "chapter")
        self.seen = self.look()

    def look(self) -> dict[Path, object]:
        found: dict[Path, object] = {}
        for path in (*self._folder.rglob("*"), *self.outside.rglob("*")):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                found[path] = os.readlink(path)
            else:
                found[path] = path.read_bytes() if stat.S_ISREG(mode) else stat.S_IFMT(mode)
        return found

    def lost(self) -> list[str]:
        """Return what is gone or changed."""
        now = self.look()
        return [str(path) for path, content in self.seen.items() if now.get(path) != content]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "place"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("SPLITFUSE_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return folder


# Scenarios. Each makes what the remover needs, puts foreign files beside it and at its names, and runs it.


def prefix_cache(folder: Path) -> Foreign:
    """The folder of a cache into which somebody put files later, at every depth."""
    entries = EntryFolder(folder)
    foreign = Foreign(folder)
    codec = EntryCodec(b"namespace", "")
    tenant = f"{_HEX[:32]}/{codec.tenant_name}"
    writes = [
        Write(codec, _HEX[:32], Identity(BLOCK, bytes([number]), b""), 16, 0, lambda: memoryview(bytes(5000)), bool)
        for number in range(9)
    ]
    writes = [write._replace(is_current=lambda: True) for write in writes]
    foreign.add(*(f"{_HEX[:32]}/{_HEX[:32]}/{name}" for name in ("a.draft", f"{_HEX[:40]}.draft", _HEX[:40])))
    foreign.add(writes[0].path, f"{writes[1].path}.draft", f"{tenant}/mine.bin")
    foreign.odd(*(write.path for write in writes[2:5]), *(f"{tenant}/{number:040x}.draft" for number in range(3)))
    foreign.link(folder / ("f" * 32), folder / "work")
    behind = WriteBehind(entries, 12_000, Activity())
    for path in (*(write.path for write in writes[:5]), "photos/2020/file0.bin"):
        behind.remove(path)
    for write in writes:
        behind.add(write)
    behind.flush(10)
    behind.close()
    assert behind.failure is None
    assert entries.exists(writes[8].path), "two entries fit"
    assert not entries.exists(writes[6].path)
    return foreign


def runtime_files(folder: Path) -> Foreign:
    foreign = Foreign(folder)
    foreign.add("1.json", "settings.json", content=b'{"theme": "dark"}')
    foreign.odd("2.json", "3.json", "4.json")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with announced(host="127.0.0.1", port=81, model="m"):
        own = folder / f"{os.getpid()}.json"
        (folder / "5.json").write_text(own.read_text().replace(str(os.getpid()), str(dead.pid)))
        assert [server.port for server in running_servers()] == [81]
        assert not (folder / "5.json").exists()
    assert not own.exists()
    foreign.add(own.name)
    with announced(host="127.0.0.1", port=81, model="m"):
        assert running_servers() == []
    return foreign


def model(folder: Path) -> Foreign:
    """A snapshot of which somebody replaced a link by a link to a file of theirs, and put files beside."""
    foreign = Foreign(folder)
    own = fetched(folder / _REPOSITORY)
    foreign.add(f"{_REPOSITORY}/snapshots/aa/notes.txt", f"{_REPOSITORY}/blobs/thesis", f"{_REPOSITORY}/thesis")
    for name in ("model-2.safetensors", "tokenizer.json"):
        (folder / _REPOSITORY / "snapshots/aa" / name).unlink(missing_ok=True)
        foreign.link(folder / _REPOSITORY / "snapshots/aa" / name, foreign.outside / "thesis.draft")
    foreign.seen = {path: content for path, content in foreign.look().items() if path not in own}
    assert main(["rm", "tiny/demo", "--yes"]) == 0
    assert len([path for path in own if path.exists()]) == 4, "commit, part, the user's link and its old blob"
    return foreign


def last_model(folder: Path) -> Foreign:
    """A snapshot that goes, with files of somebody beside it."""
    foreign = Foreign(folder)
    own = fetched(folder / _REPOSITORY)
    foreign.add(*(f"{_REPOSITORY}/{name}" for name in ("thesis", "blobs/thesis", ".no_exist/aa/thesis")))
    foreign.odd(*(f"{_REPOSITORY}/{name}" for name in ("blobs/" + "b" * 40, "blobs/" + "c" * 40, ".no_exist/bb")))
    own += [folder / _REPOSITORY / name for name in ("refs", "snapshots", "snapshots/aa")]
    foreign.seen = {path: content for path, content in foreign.look().items() if path not in own}
    assert main(["rm", "tiny/demo", "--yes"]) == 0
    assert [path for path in own if os.path.lexists(path)] == []
    return foreign


def fetched(repository: Path) -> list[Path]:
    """Write what the hub's client leaves after a download, and a part that it did not finish. Returns the paths."""
    paths = {repository / "refs/main": b"aa", repository / "blobs" / ("a" * 40 + ".12345678.incomplete"): b"part"}
    for number, name in enumerate(("config.json", "model.safetensors", "tokenizer.json")):
        blob, link = repository / "blobs" / f"{number:040x}", repository / "snapshots/aa" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
        paths |= {blob: b"{}", link: b""}
    for path, content in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if content:
            path.write_bytes(content)
    return list(paths)


def private_files(folder: Path) -> Foreign:
    foreign = Foreign(folder)
    foreign.odd("link", "pipe", "folder")
    for name in ("notes.json", "photos/2020/file0.bin", "link", "folder"):
        with pytest.raises(ConfigError, match=f"--record .*{name}"):
            create_private(folder / name, setting="--record")
    (folder / "recording").write_bytes(HEAD + b'recording"}')
    os.close(create_private(folder / "recording", setting="--record"))
    assert (folder / "recording").read_bytes() == b""
    return foreign


def abandoned(folder: Path) -> Foreign:
    """Temporary folders of processes that were killed, of one that lives, and of other programs."""
    foreign = Foreign(folder)
    left, kept = folder / "splitfuse-left", folder / "splitfuse-kept"
    for path in (left, kept):
        hold = f"hold_folder(Path('{path}')).__enter__(); os._exit(9)"
        run = f"from splitfuse.engine.private_file import *; {hold}"
        path.mkdir(mode=0o700)
        assert subprocess.run([sys.executable, "-P", "-c", run], check=False).returncode == 9
    SqliteStore(left / "model.db")._db.execute("PRAGMA wal_autocheckpoint = 0")  # open until the end: its log stays
    EntryFolder(left / "cache").write("a" * 32 + "/" + "b" * 32 + "/" + "c" * 40, [MAGIC + bytes(99)], used_ns=1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left / "m-socket"))
    foreign.add("splitfuse-kept/cache/mine", "splitfuse-kept/results.csv", "splitfuse-other/splitfuse-notes")
    foreign.odd("splitfuse-kept/link", "splitfuse-kept/pipe", "splitfuse-kept/folder")
    foreign.link(folder / "splitfuse-linked", foreign.outside)
    own_files = {kept / "splitfuse-held", *left.rglob("*"), left}
    foreign.seen = {path: content for path, content in foreign.look().items() if path not in own_files}
    assert len(own_files) > 8
    with temporary_folder() as own, temporary_folder():
        assert own.exists()
    assert not own.exists()
    assert [path for path in own_files if path.exists()] == []
    return foreign


def hashes(folder: Path) -> Foreign:
    foreign = Foreign(folder)
    foreign.add("hashes.json", f"own.json.{os.getpid()}")
    foreign.odd("link.json", "pipe.json", "folder.json")
    for name in ("hashes.json", "own.json", "link.json", "pipe.json", "folder.json"):
        assert len(FileHashes(folder / name).sha256(folder / "notes.json")) == 64
    assert not list(folder.glob(f"hashes.json.{os.getpid()}")), "no draft is left"
    return foreign


def library(folder: Path) -> Foreign:
    foreign = Foreign(folder)
    foreign.add("build-notes/chapter", "cpu.so.bak")
    foreign.odd("build-link", "build-pipe", "build-folder")
    (folder / "build-killed").mkdir()
    (folder / "build-killed/splitfuse-build").touch()

    def compiled(scratch: Path) -> Path:
        (scratch / "native.so").write_bytes(b"no library")
        return scratch / "native.so"

    with pytest.raises(OSError, match=r"invalid ELF|too short"):
        LibraryCache(folder).load("cpu.so", compiled)
    assert not (folder / "build-killed").exists()
    objects = ObjectCache(folder)
    foreign.add("object-photo.o", "object-photo.o.bak", "object-own.o.old")
    foreign.odd("object-link.o", "object-pipe.o", "object-folder.o")
    (folder / "compiled.o").write_bytes(b"object")
    for key in ("new", "old"):
        objects.keep(key, folder / "compiled.o")
    objects.drop_others(["new"])
    assert {path.name for path in folder.glob("object-???.o")} == {"object-new.o"}
    return foreign


def conversation(folder: Path) -> Foreign:
    foreign = Foreign(folder)
    foreign.odd("link", "pipe", "folder")
    chat = Conversation.__new__(Conversation)
    chat._messages = [{"role": "user", "content": "hello"}]
    for name in ("notes.json", "link", "folder"):
        with pytest.raises(ConfigError):
            chat._save(folder / name)
    for messages in (chat._messages, []):
        chat._messages = messages
        for _ in range(2):
            chat._save(folder / "saved.json")
    return foreign


def results(folder: Path) -> Foreign:
    """`--results FILE` among other programs' files, and at the name of one."""
    foreign = Foreign(folder)
    with sqlite3.connect(folder / "other.db") as db:
        db.execute("CREATE TABLE jobs (name TEXT)")
    foreign.add("results.db.bak", "results.db-notes")
    foreign.odd("link", "pipe", "folder")
    for name in ("other.db", "notes.json", "folder"):
        with pytest.raises(ConfigError, match="--results"):
            SqliteStore(folder / name)
    SqliteStore(folder / "results.db").close()
    return foreign


def torch_in_an_image(folder: Path) -> Foreign:
    """A folder of packages: files that pip has not recorded as torch's stay."""
    foreign = Foreign(folder)
    foreign.add(*(f"torch/{name}/mine" for name in ("test", "include", "share", "bin")), "torch/bin/torch_shm_manager")
    foreign.odd(*(f"torch/test/{name}" for name in ("link", "pipe", "folder")))
    own = ["torch/test/a_test", "torch/include/torch/a.h", "torch/share/cmake/b", "torch/bin/protoc"]
    for name in own:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    record = [f"{name},sha256=,1" for name in (*own, "torch/bin/torch_shm_manager", "torch/nn/__init__.py")]
    (folder / "torch-2.13.0.dist-info").mkdir()
    (folder / "torch-2.13.0.dist-info/RECORD").write_text("\n".join(record))
    python = folder.parent / "bin/python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\necho {folder}\n")
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"
    subprocess.run(["sh", str(ROOT / "docker/trim_torch.sh")], check=True, env={"PATH": path}, cwd=folder.parent)
    assert [name for name in own if (folder / name).exists()] == []
    return foreign


# Why the file of a remover cannot be a foreign one.
SCRATCH = "within a folder that tempfile made for this call"
NAMELESS = "has no name in the file system"
OUTPUT = "the output that the user names for this one command, as after `>` in a shell"

ROWS: dict[str, Scenario | str] = {
    "engine/private_file.py:remove_own": prefix_cache,
    "engine/private_file.py:replace_own": prefix_cache,
    "engine/private_file.py:claim_folder": prefix_cache,
    "engine/private_file.py:hold_folder": abandoned,
    "engine/private_file.py:remove_abandoned": abandoned,
    "engine/private_file.py:create_private": private_files,
    "engine/extras/disk_cache/entry_folder.py:EntryFolder.try_to_write": prefix_cache,
    "engine/extras/disk_cache/entry_folder.py:EntryFolder.write": prefix_cache,
    "engine/extras/disk_cache/entry_folder.py:EntryFolder.remove": prefix_cache,
    "engine/extras/receipts/file_hashes.py:FileHashes._write": hashes,
    "engine/extras/simulation/recording.py:Recorder.open": private_files,
    "engine/extras/simulation/plot.py:run": OUTPUT,
    "server/results/durable/sqlite_store.py:SqliteStore.backup": "a temporary file of its own, linked to a new name",
    "server/commands/model_store/pull.py:_check": "a file of the hub's cache whose name is not the hash of its content",
    "server/commands/model_store/pull.py:_from_index": "the model's own name in the hub's cache, where no such file is",
    "server/commands/model_store/pull.py:_pieces": "a wheel in a temporary folder of its own",
    "server/commands/inspect.py:_sparse": "a file in a temporary folder of its own",
    "server/process/start.py:listen_at": "a socket on which nobody listens; bind refuses any other file",
    "server/process/runtime_file.py:announced": runtime_files,
    "server/process/runtime_file.py:running_servers": runtime_files,
    "server/commands/model_store/remove.py:_delete": model,
    "server/commands/model_store/remove.py:_prune": last_model,
    "server/commands/chat.py:Conversation._save": conversation,
    "kernels/cpu/library_cache.py:LibraryCache._build": library,
    "kernels/cpu/library_cache.py:_write_whole": library,
    "kernels/cpu/library_cache.py:ObjectCache.drop_others": library,
    "kernels/cpu/library_cache.py:ObjectCache.restore": SCRATCH,
    "kernels/cpu/library_cache.py:_load": NAMELESS,
    "kernels/cpu/rank_group.py:RankGroup.__init__": NAMELESS,
    "engine/extras/disk_cache/entry_folder.py:EntryFolder.__init__": prefix_cache,
    "engine/extras/bench/command.py:main": OUTPUT,
    "engine/extras/bench/offline.py:_folder": SCRATCH,
    "server/commands/terminal/embedding.py:_write": OUTPUT,
    "server/results/durable/sqlite_store.py:_connected": results,
    "server/extras/pooling_model/pooling_server.py:_give_way": "a file of /proc",
    "server/extras/replicas/haproxy.py:Haproxy._write_config": SCRATCH,
    "server/extras/replicas/haproxy.py:Haproxy.start": SCRATCH,
    "client/bench/cli.py:_report": OUTPUT,
    "docker/trim_torch.sh": torch_in_an_image,
    "docker/install_package.sh": "copies what pip has just installed over an image's own environment",
}


def removers() -> Iterator[str]:
    """Yield the functions with calls that can delete, empty or replace a file."""
    for script in (ROOT / "docker").glob("*.sh"):
        if re.search(r"\b(rm|rmdir|mv|cp|truncate)\b|-delete\b", script.read_text()):
            yield f"docker/{script.name}"
    for package in ("server", "engine", "kernels", "client"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from _removers_in(path)


def _removers_in(path: Path) -> Iterator[str]:
    def visit(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = (*names, node.name)
        if isinstance(node, ast.Call) and _removes(node):
            yield f"{path.relative_to(ROOT)}:{'.'.join(names)}"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, names)

    return visit(ast.parse(path.read_text()), ())


_ALWAYS = {
    *("unlink", "rmdir", "rmtree", "removedirs", "rename", "renames", "truncate", "ftruncate", "write_text"),
    *("write_bytes", "save_file", "copyfile", "copytree", "copy2", "mkstemp", "NamedTemporaryFile"),
    *("savefig", "savez", "savez_compressed", "tofile", "memmap", "extractall", "unpack_archive", "urlretrieve"),
    *("FileHandler", "RotatingFileHandler", "system"),
    *("create_private", "remove_own", "replace_own", "claim_folder"),
}


def _removes(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    owner = function.value.id if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""
    if name == "replace":  # a path's or os's; a str's has two arguments, a dataclass's and a time's have names
        is_method = isinstance(function, ast.Attribute) and not call.keywords
        return is_method and (len(call.args) == 1 or owner == "os")
    if name in ("remove", "save", "copy", "move"):
        return owner in ("os", "np", "shutil", "torch")
    if name in ("run", "call", "check_call", "check_output", "Popen"):
        words = {part.value for part in ast.walk(call) if isinstance(part, ast.Constant)}
        return bool(words & {"rm", "rmdir", "mv", "cp", "dd", "truncate", "tar", "unzip"})
    if name in ("open", "fdopen"):
        modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        modes += [
            word.value.value for word in call.keywords if word.arg == "mode" and isinstance(word.value, ast.Constant)
        ]
        flags = {part.attr for part in ast.walk(call) if isinstance(part, ast.Attribute)}
        if isinstance(function, ast.Name) and not all(isinstance(arg, ast.Constant) for arg in call.args[1:2]):
            return True  # a mode that the source does not show
        return any(set(mode) & set("wx+") for mode in modes if len(mode) <= 3) or bool(flags & {"O_TRUNC", "O_CREAT"})
    return name in _ALWAYS


def test_every_remover_has_a_row() -> None:
    found = set(removers())
    assert found - ROWS.keys() == set(), "a remover without a row: what happens to foreign files at its names?"
    assert ROWS.keys() - found == set(), "a row without a remover"


@pytest.mark.parametrize(
    "scenario", dict.fromkeys(row for row in ROWS.values() if callable(row)), ids=lambda row: row.__name__
)
def test_no_foreign_file_is_lost(scenario: Callable[[Path], Foreign], folder: Path) -> None:
    assert scenario(folder).lost() == []
