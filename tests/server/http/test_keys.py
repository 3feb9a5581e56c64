"""Keys that come from a file open the server, and nothing else does."""

import pytest

from splitfuse.server.http.keys import is_open_to_others
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


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_file_that_every_user_can_read(tmp_path, mode, is_open):
    path = tmp_path / "keys"
    path.touch()
    path.chmod(mode)
    assert is_open_to_others(path) is is_open
