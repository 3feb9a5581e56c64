"""Ids of no id's form are unknown ids, whatever the store is: no store is asked for them."""

from pathlib import Path
from urllib.parse import quote

import pytest
from fake_engine import FakeEngine
from postgres_server import PostgresServer
from serving import ready_client

from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

ODD = ["\0", "'", '"', ";", "--", "%", "_\0_", "\\", "\n", "\r\n", "\ufffd", "é", "\U0001f600", "<script>", " ", "\x7f"]
ODD += ["' OR 1=1 --", "$1", "{}", "\u202e", "a" * 5000]
IDS = [f"{before}{odd}{after}" for odd in ODD for before in ("", "a") for after in ("", "b")]


@pytest.fixture(params=["sqlite", "postgres"])
def results(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "results.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


async def test_an_odd_id_is_an_unknown_id(results: str) -> None:
    assert len(IDS) == 84
    app = build_app(Settings(results=results, request_log=False), FakeEngine())
    async with ready_client(app) as client:
        for odd in IDS:
            path = quote(odd, safe="")
            answers = [
                await client.get(f"/result/{path}"),
                await client.delete(f"/result/{path}"),
                await client.get(f"/results?after={path}"),
                await client.get(f"/v1/files/{path}"),
                await client.get(f"/v1/batches/{path}"),
                await client.post(f"/v1/batches/{path}/cancel"),
                await client.post("/v1/responses", json={"input": "a", "previous_response_id": odd}),
            ]
            assert {answer.status_code for answer in answers} <= {400, 404}, (odd, answers)
        assert (await client.get("/ready")).status_code == 200
