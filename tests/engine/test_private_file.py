"""Files of users' data are this user's alone, and files of secrets are nobody else's to change."""

import os
import stat
from pathlib import Path

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.private_file import check_secret, create_private, others_with_access


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("earlier", [None, 0o644, 0o666])
def test_only_this_user_may_read_what_is_made(tmp_path, earlier):
    path = tmp_path / "recording.jsonl"
    if earlier is not None:
        path.write_text('{"splitfuse":"recording","format":1}')
        path.chmod(earlier)
    os.close(create_private(path, setting="--record"))
    assert (mode(path), path.read_text()) == (0o600, "")


@pytest.mark.parametrize("is_dangling", [True, False])
def test_no_link_is_followed(tmp_path, is_dangling):
    target = tmp_path / "somebody-elses"
    if not is_dangling:
        target.write_text("theirs")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(ConfigError, match=r"--record .*link: a symbolic link.*name the file itself"):
        create_private(tmp_path / "link", setting="--record")
    assert target.exists() is not is_dangling
    assert is_dangling or target.read_text() == "theirs"


def test_devices_keep_their_mode():
    before = os.stat("/dev/null").st_mode
    os.close(create_private(Path("/dev/null"), setting="--record"))
    assert os.stat("/dev/null").st_mode == before


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        create_private(tmp_path / "nowhere" / "file", setting="--record")


@pytest.mark.parametrize(
    ("bits", "others"),
    [(0o600, ""), (0o640, "its group"), (0o620, "its group"), (0o644, "every user"), (0o602, "every user")],
)
def test_others_with_access(tmp_path, bits, others):
    path = tmp_path / "keys"
    path.touch()
    path.chmod(bits)
    found = others_with_access(path)
    assert found.startswith(others)
    assert bool(found) is bool(others)


@pytest.mark.parametrize(("bits", "is_refused"), [(0o600, False), (0o644, False), (0o660, True), (0o602, True)])
def test_a_secret_that_others_can_write_is_refused(tmp_path, bits, is_refused):
    path = tmp_path / "keys"
    path.touch()
    path.chmod(bits)
    if not is_refused:
        check_secret(path, setting="--api-key-file")
        return
    with pytest.raises(ConfigError, match="chmod go-w"):
        check_secret(path, setting="--api-key-file")
