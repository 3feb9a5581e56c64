"""Quota of a key: a number of bytes kept in memory or on disk; beyond it new work is refused until some are gone."""

import asyncio
from pathlib import Path

import pytest

from splitfuse.server.settings import Settings

BODY = {"prompt": "hello", "max_tokens": 20}
MINE, YOURS = ({"Authorization": f"Bearer {key}"} for key in ("mine", "yours"))
MOST = 16_000


@pytest.fixture(params=["memory", "file"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    results = "memory" if request.param == "memory" else str(tmp_path / "results.db")
    return Settings(results=results, max_result_bytes_per_key=MOST, api_key=("mine", "yours"))


async def test_requests_at_once_share_the_bytes(served) -> None:
    answers = await asyncio.gather(*(served.client.post("/generate", json=BODY, headers=MINE) for _ in range(40)))
    urls = [answer.json()["result_url"] for answer in answers if answer.status_code == 202]
    assert {answer.status_code for answer in answers} == {202, 429}
    for url in urls:
        await served.client.get(f"{url}?wait=60", headers=MINE)
    owner = next(iter(served.service.results.index._jobs.values())).owner
    assert await served.service.results.num_bytes_of(owner) < 1.5 * MOST


async def test_one_key_has_so_many_bytes(served) -> None:
    client, urls = served.client, []
    while (answer := await client.post("/generate", json=BODY, headers=MINE)).status_code == 202:
        urls.append(answer.json()["result_url"])
        await client.get(f"{urls[-1]}?wait=60", headers=MINE)
        assert len(urls) < 50
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], answer.headers["retry-after"]) == (429, "quota_exceeded", "60")
    assert f"--max-result-bytes-per-key is {MOST}" in error["message"]
    assert len(urls) > 1
    asked = {"input": "hello", "max_output_tokens": 5}
    assert (await client.post("/v1/responses", json=asked, headers=MINE)).status_code == 429
    assert (await client.post("/v1/responses", json={**asked, "store": False}, headers=MINE)).status_code == 200
    assert (await client.post("/generate", json=BODY, headers=YOURS)).status_code == 202
    await client.delete(urls[0], headers=MINE)
    assert (await client.post("/generate", json=BODY, headers=MINE)).status_code == 202
