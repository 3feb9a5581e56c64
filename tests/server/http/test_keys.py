"""Keys that come from a file open the server, and nothing else does."""

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.server.settings import Settings


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# for the tests\nfrom-the-file\n")
    return Settings(api_key=("from-the-flag",), api_key_file=str(path))


@pytest.mark.parametrize(
    ("key", "status"), [("from-the-file", 200), ("from-the-flag", 200), ("# for the tests", 401), ("#", 401)]
)
async def test_both_sources_open_the_server(served, key, status):
    response = await served.client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert response.status_code == status


@pytest.mark.parametrize("name", ["api_key_file", "admin_key_file"])
def test_a_key_file_that_others_can_write_is_refused(tmp_path, name):
    path = tmp_path / "keys"
    path.write_text("from-the-file\n")
    for mode in (0o620, 0o602, 0o660):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} .*: chmod go-w"):
            Settings(**{name: str(path)})


def test_admin_keys_come_from_both_sources(tmp_path):
    path = tmp_path / "keys"
    path.write_text("from-the-file\n")
    assert Settings(admin_key=("from-the-flag",), admin_key_file=str(path)).admin_keys == (
        "from-the-flag",
        "from-the-file",
    )
    assert "from-the" not in repr(Settings(admin_key=("from-the-flag",)))
