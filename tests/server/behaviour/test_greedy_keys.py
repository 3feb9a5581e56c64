"""A greedy key takes of everything that keys share as much as it gets. The next key still has its share, soon.

Each row of the table "Shares of keys" in server/docs/access.md has its greedy key here; adapters' is in `extras/lora`.
"""

import asyncio
import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from splitfuse.server.jobs.shares import Turns, most_of
from splitfuse.server.settings import Settings

GREEDY, OTHER = "greedy-secret-key", "other-secret-key"
MIB = 2**20
LINE = {"custom_id": "0", "method": "POST", "url": "/generate", "body": {"prompt": "a", "max_tokens": 5}}
FEW_S = 2.0


@pytest.fixture
def settings():
    return Settings(
        api_key=(GREEDY, OTHER), max_total_file_bytes=8 * MIB, max_file_bytes=2 * MIB, max_batch_requests=4,
        max_result_bytes_per_key=100_000, max_unfinished_per_key=20,
    )  # fmt: skip


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


async def upload(served, key, *, num_lines=1, padding=0):
    lines = [json.dumps({**LINE, "custom_id": str(number), "x": "y" * padding}) for number in range(num_lines)]
    files = {"file": ("f.jsonl", "\n".join(lines).encode())}
    return await served.client.post("/v1/files", files=files, data={"purpose": "batch"}, headers=bearer(key))


async def batch(served, key, file_id):
    body = {"input_file_id": file_id, "endpoint": "/generate", "completion_window": "24h"}
    return await served.client.post("/v1/batches", json=body, headers=bearer(key))


async def test_bytes_of_files(served):
    answers = [await upload(served, GREEDY, padding=MIB) for _ in range(9)]
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses[200] == 3, "half of 8 MiB is 4; each has a little more than one"
    assert "your files have" in answers[-1].text
    assert [(await upload(served, OTHER, padding=MIB)).status_code for _ in range(2)] == [200, 200]


async def test_unfinished_batches(served, monkeypatch):
    monkeypatch.setattr("splitfuse.server.results.batches.batches.MAX_UNFINISHED", 10)
    served.engine.hold()
    ids = {key: (await upload(served, key)).json()["id"] for key in (GREEDY, OTHER)}
    answers = [await batch(served, GREEDY, ids[GREEDY]) for _ in range(10)]
    assert Counter(answer.status_code for answer in answers) == {200: 5, 429: 5}
    assert (await batch(served, OTHER, ids[OTHER])).status_code == 200


async def test_lines_of_batches(served, monkeypatch):
    """The greedy key's lines never end; another key's batch does."""
    run = served.service.endpoints["/generate"]
    never = asyncio.Event()

    async def answer(service, fields, *, owner, defaults):
        if fields["max_tokens"] == 7:
            await never.wait()
        return await run(service, fields, owner=owner, defaults=defaults)

    monkeypatch.setitem(served.service.endpoints._own, "/generate", answer)
    lines = "\n".join(
        json.dumps({**LINE, "custom_id": str(n), "body": {"prompt": "a", "max_tokens": 7}}) for n in range(50)
    )
    sent = {"files": {"file": ("f", lines.encode())}, "data": {"purpose": "batch"}}
    file = (await served.client.post("/v1/files", **sent, headers=bearer(GREEDY))).json()
    for _ in range(3):
        assert (await batch(served, GREEDY, file["id"])).status_code == 200
    mine = (await batch(served, OTHER, (await upload(served, OTHER, num_lines=9)).json()["id"])).json()
    async with asyncio.timeout(60):
        while True:
            found = await served.client.get(f"/v1/batches/{mine['id']}", headers=bearer(OTHER))
            if found.json()["status"] == "completed":
                break
            await asyncio.sleep(0.01)


async def test_bytes_and_number_of_results(served):
    served.engine.hold()
    body = {"prompt": "a" * 100, "max_tokens": 300}
    taken = [await served.client.post("/generate", json=body, headers=bearer(GREEDY)) for _ in range(30)]
    assert {answer.status_code for answer in taken} == {202, 429}
    assert (await served.client.post("/generate", json=body, headers=bearer(OTHER))).status_code == 202


async def test_turns_shut_nobody_out():
    """Greedy keys wait for places all the time; a key that comes later gets one before they have had a round."""
    turns, rng = Turns(8, is_divided=True), random.Random(3)
    running: Counter[str] = Counter()
    had: Counter[str] = Counter()

    async def worker(key, rounds):
        for _ in range(rounds):
            await turns.take(key)
            running[key] += 1
            had[key] += 1
            assert running.total() <= 8
            assert running[key] < 8
            for _ in range(rng.randint(1, 5)):
                await asyncio.sleep(0)
            running[key] -= 1
            turns.leave(key)

    greedy = [asyncio.create_task(worker(key, 200)) for key in "abc" for _ in range(20)]
    cancelled = [asyncio.create_task(worker("d", 200)) for _ in range(20)]
    await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    for task in cancelled[5:]:
        task.cancel()
    running["d"] = 0 if all(task.done() for task in cancelled) else running["d"]
    before = had.total()
    await worker("late", 1)
    assert had.total() - before < 8 * 4
    for task in (*greedy, *cancelled):
        task.cancel()
    await asyncio.gather(*greedy, *cancelled, return_exceptions=True)


def test_n_greedy_keys_leave_a_share():
    held = dict.fromkeys("abcd", 0)
    for _ in range(1000):
        for key in held:
            most = most_of(1000, num_own=held[key], num_all=sum(held.values()), is_divided=True)
            held[key] += held[key] < most
    assert all(190 <= num <= 210 for num in held.values()), held
    assert most_of(10, num_own=3, num_all=9, is_divided=False) == 10


def test_each_row_of_the_documents_has_its_greedy_key():
    text = (Path(__file__).parents[3] / "server/docs/access.md").read_text()
    rows = re.findall(r"^\| ([\w ]+) \| [`\d]", text.partition("## Shares of keys")[2].partition("\n## ")[0], re.M)
    assert rows == [
        *(
            "bytes of files",
            "unfinished batches",
            "lines of batches that run",
            "adapters in memory",
            "bytes of results",
            "unfinished results",
        ),
    ]
