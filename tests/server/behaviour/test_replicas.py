"""Replicas behind a real HAProxy: where requests go, what a death and a drain cost, and that nothing is left over."""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_placement import KILLED, FakePlacement
from serving import ServerProcess

from splitfuse.engine.errors import ConfigError
from splitfuse.server.extras.replicas.supervisor import Supervisor
from splitfuse.server.process.start import listen
from splitfuse.server.settings import Settings

# Their replicas have seconds to start, which a busy machine does not give.
pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy: apt-get install haproxy"),
    pytest.mark.skipif("SPLITFUSE_TEST_HAPROXY" not in os.environ, reason="needs SPLITFUSE_TEST_HAPROXY=1"),
]

BODY = {"prompt": "Once", "max_tokens": 3}


class Signals:
    """StopSignals, by hand."""

    def on_stop(self, stop: Callable[[], object], *, limit_s: float) -> None:
        self.stop = stop


@dataclass
class Supervised:
    """Supervisor that runs, and a client before it."""

    client: httpx.AsyncClient
    placement: FakePlacement
    signals: Signals
    run: "asyncio.Task[None]"

    async def until_up(self, *numbers: int) -> None:
        """Wait until HAProxy gives new work to these replicas and no others."""
        wanted = {f"r{number}-" for number in numbers}
        await until(lambda: self._takers(), wanted)

    async def _takers(self) -> set[str]:
        answers = [await self.client.post("/generate", json=BODY) for _ in range(4)]
        return {answer.json()["seq_id"][:3] if answer.status_code == 202 else "" for answer in answers}

    async def submit_to(self, number: int, **headers: str) -> str:
        """Return the id of a job of this replica."""
        while True:
            seq_id: str = (await self.client.post("/generate", json=BODY, headers=headers)).json()["seq_id"]
            if seq_id.startswith(f"r{number}-"):
                return seq_id


async def until(ask: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    async with asyncio.timeout(60):
        while await ask() != wanted:  # noqa: ASYNC110 - HAProxy tells no event
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def supervised(**given: Any) -> AsyncIterator[Supervised]:
    settings = Settings(replicas=2, port=0, **given)
    placement, signals = FakePlacement(), Signals()
    with tempfile.TemporaryDirectory() as folder, listen("127.0.0.1", 0) as listener:
        run = asyncio.create_task(Supervisor(settings, listener, signals, placement, folder).run())  # type: ignore[arg-type]
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            both = Supervised(client, placement, signals, run)
            yield both
            if not both.run.done():
                signals.stop()
            await both.run


@pytest.fixture
async def pair() -> AsyncIterator[Supervised]:
    async with supervised() as both:
        await both.until_up(0, 1)
        yield both


async def test_each_id_is_answered_by_its_replica(pair: Supervised) -> None:
    ids = [(await pair.client.post("/generate", json=BODY)).json()["seq_id"] for _ in range(8)]
    assert {seq_id[:3] for seq_id in ids} == {"r0-", "r1-"}
    for seq_id in ids:
        result = await pair.client.get(f"/result/{seq_id}?wait=60")
        assert result.json()["status"] == "completed"
        stream = await pair.client.get(f"/result/{seq_id}/stream")
        assert stream.text.count("event: token") == 3


async def test_what_a_body_names_leads_to_its_replica(pair: Supervised) -> None:
    asked = {"input": "Hi", "max_output_tokens": 3, "previous_response_id": None}
    first = (await pair.client.post("/v1/responses", json=asked)).json()["id"]
    for _ in range(4):
        answer = await pair.client.post("/v1/responses", json=asked | {"previous_response_id": first})
        assert answer.status_code == 200, answer.text
        assert answer.json()["id"][:8] == first[:8]


async def test_a_session_and_a_key_stay_with_a_replica(pair: Supervised) -> None:
    for header in ("X-Session-Id", "Idempotency-Key"):
        for value in "abcd":
            answers = [await pair.client.post("/generate", json=BODY, headers={header: value}) for _ in range(3)]
            assert len({answer.json()["seq_id"][:3] for answer in answers}) == 1
    assert [answer.headers["Idempotent-Replayed"] for answer in answers[1:]] == ["true", "true"]


async def test_metrics_are_those_of_all(pair: Supervised) -> None:
    text = (await pair.client.get("/metrics")).text
    for name in ("r0", "r1"):
        assert f'splitfuse:replica_up{{replica="{name}"}} 1.0' in text
        assert f'replica="{name}"}}' in text.partition("# TYPE splitfuse:generation_tokens_total")[2]
    assert text.count("# TYPE splitfuse:generation_tokens_total counter") == 1


async def test_a_503_is_tried_at_the_other(pair: Supervised) -> None:
    pair.placement.servers[0].engine.is_draining = True
    answers = [await pair.client.post("/generate", json=BODY) for _ in range(6)]
    assert {answer.status_code for answer in answers} == {202}
    assert {answer.json()["seq_id"][:3] for answer in answers} == {"r1-"}


async def test_a_replica_that_ends_is_started_again(pair: Supervised) -> None:
    lost, kept = await pair.submit_to(0), await pair.submit_to(1)
    pair.placement.servers[0].end(KILLED)
    away = await pair.client.get(f"/result/{lost}")
    assert away.status_code in (503, 404)  # 404 once it is back, and never the other's
    assert away.status_code == 404 or away.json()["error"]["code"] == "replica_unavailable"
    assert (await pair.client.get(f"/result/{kept}?wait=60")).json()["status"] == "completed"
    assert (await pair.client.post("/generate", json=BODY)).status_code == 202
    await pair.until_up(0, 1)
    pair.placement.servers[1].lose()
    assert (await pair.client.post("/generate", json=BODY)).status_code == 202
    await pair.until_up(0, 1)
    assert [config["id_tag"] for config in pair.placement.configs] == ["r0-", "r1-", "r0-", "r1-"]


async def test_a_signal_has_polled_jobs_finish(pair: Supervised) -> None:
    engine = pair.placement.servers[1].engine
    engine.hold()
    seq_id = await pair.submit_to(1)
    polled = asyncio.create_task(pair.client.get(f"/result/{seq_id}?wait=60"))
    pair.signals.stop()
    await engine.drain_seen.wait()
    refused = await pair.client.post("/generate", json=BODY)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    await engine.allow()
    assert (await polled).json()["status"] == "completed"
    await pair.run


async def test_keys_are_checked_by_the_replicas() -> None:
    async with supervised(api_key=("secret",)) as both:
        both.client.headers["x-api-key"] = "secret"
        await both.until_up(0, 1)
        assert (await both.client.get("/metrics")).text.count("splitfuse:replica_up{") == 2
        refused = await both.client.get("/metrics", headers={"x-api-key": "wrong"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_replica_that_cannot_start_ends_all() -> None:
    async with supervised() as both:
        await both.placement.has_started.wait()
        both.placement.servers[0].end(2)
        with pytest.raises(ConfigError, match="replica r0 could not start"):
            await both.run
        both.run = asyncio.create_task(asyncio.sleep(0))


def test_the_command() -> None:
    env = {"SPLITFUSE_API_KEY": "only-in-memory"}
    headers = {"x-api-key": env["SPLITFUSE_API_KEY"]}
    with (
        ServerProcess("demo", "--replicas", "2", env=env) as server,
        httpx.Client(base_url=server.url, timeout=60, headers=headers, trust_env=False) as client,
    ):
        accepted = client.post("/generate", json=BODY)
        assert client.get(accepted.headers["Location"] + "?wait=60").json()["status"] == "completed"
        children = _tree(server.process.pid)
        told = [Path(f"/proc/{pid}/{what}").read_bytes() for pid in children for what in ("cmdline", "environ")]
        assert not [text for text in told if headers["x-api-key"].encode() in text]
        ends = [os.pidfd_open(pid) for pid in children]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert len(children) >= 3
    for end in ends:  # the last resort looks for its parent five times a second
        assert select.select([end], [], [], 60)[0]
        os.close(end)


def _tree(pid: int) -> list[int]:
    own = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return own + [descendant for child in own for descendant in _tree(child)]
