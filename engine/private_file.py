"""Private files: files of users' data are created for this user alone, and files of secrets are checked for others.

The program deletes, empties and replaces only what it provably wrote, by the functions here. A file's proof is its
head, the first bytes; a folder's is a marker in it. A socket on which nobody listens is of use to nobody. No link is
followed. Modes mean nothing on Windows, where every file passes.
"""

import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import ConfigError

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait
HEAD = b'{"splitfuse":"'  # of JSON files
MARKER = "splitfuse-folder"
_HELD = "splitfuse-held"  # marker that a living process has locked
_MAX_HEAD = 64
Head = bytes | tuple[bytes, ...]

_log = logging.getLogger("splitfuse.engine")


def is_own(path: Path, head: Head = HEAD) -> bool:
    """True if this is a regular file of this user that begins with a head or is empty."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_FOLLOW | _NO_WAIT)) as file:
            status = os.fstat(file.fileno())
            is_proven = not status.st_size or (bool(head) and file.read(_MAX_HEAD).startswith(head))
            return is_proven and (os.name == "nt" or status.st_uid == os.geteuid())
    except OSError:
        return False


def remove_own(path: Path, head: Head = HEAD) -> None:
    """Delete a file if it is own."""
    with contextlib.suppress(OSError):
        if is_own(path, head):
            path.unlink()


def replace_own(draft: Path, target: Path, head: Head = HEAD) -> None:
    """Rename an own draft to a name that is free or an own file's. Raises FileExistsError, without the draft then."""
    if os.path.lexists(target) and not is_own(target, head):
        remove_own(draft, head)
        raise FileExistsError(errno.EEXIST, "another program's file", str(target))
    draft.replace(target)


def claim_folder(path: Path, *, setting: str, is_entry: Callable[[Path], bool]) -> None:
    """Make a private folder with a marker. Raises ConfigError if others can write it, or if it has other contents.

    `is_entry`: True for files and folders that an earlier version wrote, which put no marker beside them.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as exc:
        raise ConfigError(f"{setting} {path}: cannot be made ({exc.strerror})") from exc
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{setting} {path}: no folder, or a link to one; name the folder itself")
    other = f"name a new folder, such as {setting} {path / 'splitfuse'}"
    if os.path.ismount(path) or Path("~").expanduser().resolve().is_relative_to(path.resolve()):
        raise ConfigError(f"{setting} {path}: a mount point, or holds your home folder; {other}")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigError(f"{setting} {path}: others can write it, and so change answers; chmod 700 it")
    if is_own(path / MARKER):
        return
    inside = (Path(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files))
    if foreign := next((item for item in inside if not is_own(item) and not is_entry(item)), None):
        raise ConfigError(f"{setting} {path}: holds others' files ({foreign.relative_to(path)}); {other}")
    with contextlib.suppress(ConfigError), open(create_private(path / MARKER, setting=setting), "wb") as file:
        file.write(HEAD + b'folder"}\n')  # a folder that is read-only goes without


@contextlib.contextmanager
def hold_folder(path: Path) -> Iterator[None]:
    """Mark a temporary folder as this process's, for the block and for as long as the process lives."""
    with open(path / _HELD, "xb") as marker:
        with contextlib.suppress(ImportError):  # Windows
            import fcntl

            fcntl.flock(marker, fcntl.LOCK_EX)
        marker.write(HEAD + b'held"}\n')  # after the lock: an empty marker is no proof
        marker.flush()
        yield


def remove_abandoned(path: Path, head: Head) -> None:
    """Delete own files and dead sockets in a folder whose holder has ended, then the folders that are empty."""
    if path.is_symlink() or not is_own(path / _HELD):
        return
    with contextlib.suppress(OSError, ImportError), open(path / _HELD, "rb") as marker:
        import fcntl

        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not marker.read(1):
            return
        for place, _, names in os.walk(path, topdown=False):
            for name in names:
                if _is_dead_socket(Path(place, name)):
                    Path(place, name).unlink()
                remove_own(Path(place, name), head)
            with contextlib.suppress(OSError):
                os.rmdir(place)


def _is_dead_socket(path: Path) -> bool:
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


def create_private(path: Path, *, setting: str, head: Head = HEAD) -> int:
    """Create or empty an own file that only this user may read, whatever the umask is. Returns its descriptor.

    Another user could have put a link in its place, so links are refused. Raises ConfigError.
    """
    refuse_link(path, setting=setting)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | _NO_FOLLOW, 0o600)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            if not is_own(path, head):
                os.close(descriptor)
                raise ConfigError(f"{setting} {path}: holds what splitfuse did not write there; name another file")
            if os.name != "nt":
                os.fchmod(descriptor, 0o600)  # the file may be an older one
            os.ftruncate(descriptor, 0)
    except OSError as exc:
        raise ConfigError(f"{setting} {path}: cannot be written ({exc.strerror})") from exc
    return descriptor


def refuse_link(path: Path, *, setting: str) -> None:
    """Raise ConfigError if a file would be created through a symbolic link."""
    if path.is_symlink():
        raise ConfigError(f"{setting} {path}: a symbolic link, through which no file is made; name the file itself")


def others_with_access(path: Path) -> str:
    """Name those beside the owner who can read or write the file; empty if nobody can, or if there is no file."""
    mode = _mode(path)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        return "every user"
    return "its group" if mode & (stat.S_IRGRP | stat.S_IWGRP) else ""


def check_secret(path: Path, *, setting: str) -> None:
    """Raise ConfigError if others can write the file of a secret, and so choose the secret. A missing file passes."""
    if _mode(path) & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{setting} {path}: others can write it, and so choose the secret: chmod go-w {path}")


def read_keys(path: Path, *, setting: str) -> tuple[str, ...]:
    """Read one key per line, skipping empty lines and comments. Raises ConfigError, which names no key."""
    check_secret(path, setting=setting)
    try:
        lines = [line.strip() for line in path.read_text(encoding="ascii").splitlines()]
    except OSError as exc:
        raise ConfigError(f"{setting} {path}: cannot be read ({exc.strerror})") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{setting} {path}: a key must be visible ASCII characters; this holds others") from exc
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{setting} {path} holds no key: write one per line, or leave the flag out")
    return keys


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode if os.name != "nt" else 0
    except OSError:
        return 0
