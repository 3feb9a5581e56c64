"""RecentJobs: answers that no store keeps are explained to their owner, and kept results only while they are kept."""

import pytest

from splitfuse.server.extras.page import recent_jobs
from splitfuse.server.settings import Settings

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "stream": True}
KEY = {"Authorization": "Bearer alice"}


async def opened(served, **options):
    """Look at the page's stream once, as the page does: from then on jobs are noted."""
    async with served.stream("GET", "/stats/stream", **options) as response:
        await anext(response.aiter_bytes())


async def chat_id(served, **options):
    """Return the id of an answer that has ended."""
    return (await served.post("/v1/chat/completions", json=CHAT, **options)).headers["x-seq-id"]


async def test_an_answer_of_a_chat_is_explained(live):
    await opened(live)
    seq_id = await chat_id(live)
    found = (await live.get(f"/result/{seq_id}/explain")).json()
    assert (found["seq_id"], found["status"]) == (seq_id, "completed")
    assert sum(found["shares"].values()) == pytest.approx(found["e2e_s"], abs=1e-3)
    assert (await live.get(f"/result/{seq_id}")).status_code == 404, "its text is not kept"


@pytest.mark.parametrize("settings", [Settings(api_key=("alice", "bob"))], ids=["keys"])
async def test_only_its_owner_sees_it(served):
    client = served.client
    await opened(client, headers=KEY)
    url = f"/result/{await chat_id(client, headers=KEY)}/explain"
    assert (await client.get(url, headers=KEY)).status_code == 200
    assert (await client.get(url, headers={"Authorization": "Bearer bob"})).status_code == 404


async def test_a_deleted_result_has_no_explanation(live):
    await opened(live)
    made = (await live.post("/generate", json={"prompt": "x", "max_tokens": 2})).json()
    await live.get(made["result_url"] + "?wait=60")
    await live.delete(made["result_url"])
    assert (await live.get(made["result_url"] + "/explain")).status_code == 404


async def test_the_oldest_are_forgotten(served, monkeypatch):
    monkeypatch.setattr(recent_jobs, "MAX_JOBS", 1)
    await opened(served.client)
    first, second = await chat_id(served.client), await chat_id(served.client)
    assert (await served.client.get(f"/result/{first}/explain")).status_code == 404
    assert (await served.client.get(f"/result/{second}/explain")).status_code == 200
