"""What a key may see and do beside other keys, over HTTP: its own rows; an admin watches all and changes the server."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from serving import ServerProcess, SlowSteps, stream_events

ALICE, BOB, ADMIN = "alice-key-0123456789", "bob-key-0123456789", "admin-key-0123456789"
SMALL = ("--dtype", "float32", "--num-kv-blocks", "64", "--max-model-len", "256")
KEYS = ("--api-key", ALICE, "--api-key", BOB)
ROWS = ("chunks", "decodes", "drafts", "forced", "admitted", "preempted", "stopped_at", "left_out")


@pytest.fixture(scope="module")
def admins_server(steps: SlowSteps) -> Iterator[ServerProcess]:
    with ServerProcess(*SMALL, *KEYS, "--admin-key", ADMIN, program=steps.program) as server:
        yield server


@pytest.fixture(scope="module")
def keys_server(steps: SlowSteps) -> Iterator[ServerProcess]:
    with ServerProcess(*SMALL, *KEYS, program=steps.program) as server:
        yield server


@pytest.fixture(params=["admins_server", "keys_server"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    server = request.getfixturevalue(request.param)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
async def admins(admins_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=admins_server.url, timeout=60) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def generate(client: httpx.AsyncClient, key: str, num_tokens: int) -> str:
    body = {"prompt": f"{key} scribbles", "max_tokens": num_tokens, "ignore_eos": True}
    answer = await client.post("/generate", json=body, headers=bearer(key))
    path = str(answer.json()["result_url"])
    assert (await client.get(f"{path}?wait=60", headers=bearer(key))).json()["status"] == "completed"
    return path


async def watch(client: httpx.AsyncClient, key: str, greeted: asyncio.Event, *, num_ends: int) -> list:
    """Return the events of /stats/stream until so many requests have ended."""
    events = []
    async with client.stream("GET", "/stats/stream", headers=bearer(key)) as response:
        async for event in stream_events(response):
            events.append(event)
            greeted.set()
            num_ends -= len(event["data"]) if event["event"] == "ended" else 0
            if num_ends <= 0:
                return events
    raise AssertionError("the stream has ended")


def numbers(events: list) -> set[int]:
    """Return the numbers of all requests in these events."""
    found: set[int] = set()
    for event in events:
        if event["event"] == "requests":
            found |= {shape["number"] for shape in event["data"]}
        elif event["event"] == "ended":
            found |= {end[0] for end in event["data"]}
        elif event["event"] == "steps":
            rows = [record.get(key, ()) for record in event["data"] for key in ROWS]
            found |= {row[0] if isinstance(row, list) else row for value in rows if value is not True for row in value}
    return found


async def watched(client: httpx.AsyncClient, watcher: str, *, num_ends: int) -> list:
    """Return what a key sees while Alice's requests run, and then one of Bob's."""
    greeted = asyncio.Event()
    watching = asyncio.create_task(watch(client, watcher, greeted, num_ends=num_ends))
    await greeted.wait()
    await asyncio.gather(*(generate(client, ALICE, 12) for _ in range(3)))
    await generate(client, BOB, 12)
    return await asyncio.wait_for(watching, 60)


async def test_the_stream_of_steps_has_no_row_of_another_key(client: httpx.AsyncClient) -> None:
    events = await watched(client, BOB, num_ends=1)
    shapes = [shape for event in events if event["event"] == "requests" for shape in event["data"]]
    assert [shape["prompt"] for shape in shapes] == [shapes[0]["prompt"]], "one request, and it is Bob's"
    assert numbers(events) == {shapes[0]["number"]}
    assert events[0]["data"]["watches"] == "own"
    assert {event["event"] for event in events} == {"hello", "requests", "steps", "ended"}, "no map of the blocks"
    records = [record for event in events if event["event"] == "steps" for record in event["data"]]
    assert len(records) >= 12
    assert {key for record in records for key in record} <= {"step", "start", "end", "chunks", "decodes", "running",
                                                             "admitted", "stopped_at", "left_out"}  # fmt: skip
    assert {record["running"] for record in records} == {1}


async def test_an_admin_sees_the_rows_of_all_keys(admins: httpx.AsyncClient) -> None:
    events = await watched(admins, ADMIN, num_ends=4)
    assert events[0]["data"]["watches"] == "all"
    assert len(numbers(events)) == 4
    assert "blocks" in {event["event"] for event in events}
    assert not any("id" in shape for event in events if event["event"] == "requests" for shape in event["data"])


async def test_stats_are_the_keys_own(client: httpx.AsyncClient) -> None:
    before = (await client.get("/stats", headers=bearer(BOB))).json()
    path = await generate(client, ALICE, 2)
    answer = await client.get("/stats", headers=bearer(BOB))
    assert answer.json() == before
    assert set(before) == {
        "model", "version", "state", "num_results", "num_result_bytes", "num_running", "num_waiting",
    }  # fmt: skip
    own = (await client.get("/stats", headers=bearer(ALICE))).json()
    assert own["num_results"] > 0
    assert own["num_result_bytes"] > 0
    for verb, suffix in (("GET", ""), ("GET", "/explain"), ("GET", "/stream"), ("DELETE", "")):
        assert (await client.request(verb, path + suffix, headers=bearer(BOB))).status_code == 404


async def chunk_beside_alice(client: httpx.AsyncClient, key: str) -> dict:
    """Return the explained chunk of a key's request, which shares its step with two outputs of Alice."""
    body = {"prompt": "x", "max_tokens": 200, "n": 2, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/generate", json=body, headers=bearer(ALICE)) as response:
        chunks = response.aiter_bytes()  # kept: httpx disconnects when its iterator is collected
        await anext(chunks)
        path = await generate(client, key, 2)
    found = (await client.get(path + "/explain", headers=bearer(key))).json()
    return next(entry for entry in found["timeline"] if entry["what"] == "chunk")


@pytest.mark.usefixtures("slow")
async def test_an_explanation_tells_no_other_key_of_others_tokens(client: httpx.AsyncClient) -> None:
    chunk = await chunk_beside_alice(client, BOB)
    assert len(chunk["numbers"]) == 2, chunk
    assert "beside" not in chunk["why"]


@pytest.mark.usefixtures("slow")
async def test_an_admins_explanation_tells_of_all_tokens(admins: httpx.AsyncClient) -> None:
    chunk = await chunk_beside_alice(admins, ADMIN)
    assert chunk["numbers"][3] == 2, chunk
    assert "beside 2 other requests with 2 tokens" in chunk["why"]


@pytest.mark.usefixtures("slow")
async def test_running_requests_count_for_their_own_key(admins: httpx.AsyncClient) -> None:
    body = {"prompt": "x", "max_tokens": 200, "n": 8, "ignore_eos": True, "stream": True}
    async with admins.stream("POST", "/generate", json=body, headers=bearer(ALICE)) as response:
        chunks = response.aiter_bytes()  # kept: httpx disconnects when its iterator is collected
        await anext(chunks)
        answers = await asyncio.gather(*(admins.get("/stats", headers=bearer(key)) for key in (ALICE, BOB, ADMIN)))
    assert [answer.json()["num_running"] for answer in answers] == [8, 0, 8]
    assert "steps" in answers[2].json()


async def test_sums_are_the_admins_where_there_is_one(admins: httpx.AsyncClient) -> None:
    assert (await admins.get("/metrics", headers=bearer(ADMIN))).status_code == 200
    answer = await admins.get("/metrics", headers=bearer(BOB))
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (403, "permission_error", "admin_key_needed")
    assert "--admin-key" in error["message"]


async def test_without_an_admin_sums_are_everybodys(keys_server: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=keys_server.url, timeout=60, headers=bearer(BOB)) as client:
        assert (await client.get("/metrics")).status_code == 200


async def test_no_place_tells_of_another_key(client: httpx.AsyncClient) -> None:
    path = await generate(client, ALICE, 2)
    places = (
        "/results", "/v1/models", "/stats", "/v1/files", "/v1/batches", "/openapi.json", "/", "/version", "/ready",
    )  # fmt: skip
    texts = [(await client.get(place, headers=bearer(BOB))).text for place in places]
    for secret in (path.removeprefix("/result/"), ALICE, BOB, ADMIN, "scribbles"):
        assert secret not in json.dumps(texts), secret
