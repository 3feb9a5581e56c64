"""Ids: what they begin with, on every route that gives one."""

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.server.jobs.job import new_id
from splitfuse.server.settings import Settings

TAG = "eu-1"


@pytest.fixture
def settings():
    return Settings(id_tag=TAG)


def test_two_ids_differ_in_all_but_their_beginning():
    first, second = new_id("batch_", TAG), new_id("batch_", TAG)
    assert first != second
    assert first.startswith("batch_eu-1")
    assert len(first) == len("batch_eu-1") + 32


@pytest.mark.parametrize("tag", ["", "a", "9", "eu-1-", "x" * 32])
def test_a_tag_of_letters_digits_and_dashes_is_taken(tag):
    assert Settings(id_tag=tag).id_tag == tag


@pytest.mark.parametrize("tag", ["-a", "a_b", "a/b", "a b", "é", "x" * 33, "resp", "a\n"])
def test_any_other_is_refused(tag):
    with pytest.raises(ConfigError, match="letters, digits and -"):
        Settings(id_tag=tag)


async def test_every_id_begins_with_the_tag(served):
    post, body = served.client.post, {"prompt": "abc", "max_tokens": 2}
    submitted = (await post("/generate", json=body)).json()
    assert submitted["seq_id"].startswith(TAG)
    assert submitted["result_url"].startswith(f"/result/{TAG}")
    completion = (await post("/v1/completions", json=body)).json()
    assert completion["id"].startswith(f"cmpl-{TAG}")
    chat = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}
    assert (await post("/v1/chat/completions", json=chat)).json()["id"].startswith(f"chatcmpl-{TAG}")
    assert (await post("/v1/messages", json=chat)).json()["id"].startswith(f"msg_{TAG}")
    upload = {"file": ("a.jsonl", b'{"custom_id": "1", "method": "POST", "url": "/generate", "body": {"prompt": "a"}}')}
    file = (await post("/v1/files", data={"purpose": "batch"}, files=upload)).json()
    assert file["id"].startswith(f"file-{TAG}")
    asked = {"input_file_id": file["id"], "endpoint": "/generate", "completion_window": "24h"}
    assert (await post("/v1/batches", json=asked)).json()["id"].startswith(f"batch_{TAG}")


async def test_a_tagged_result_is_found_in_both_spellings(served):
    get, post = served.client.get, served.client.post
    seq_id = (await post("/generate", json={"prompt": "abc", "max_tokens": 2})).json()["seq_id"]
    assert (await get(f"/result/{seq_id}?wait=60")).json()["status"] == "completed"
    response = (await post("/v1/responses", json={"input": "abc", "max_output_tokens": 2})).json()
    assert response["id"].startswith(f"resp_{TAG}")
    assert (await get(f"/v1/responses/{response['id']}")).json()["id"] == response["id"]
    assert (await get(f"/result/{response['id']}")).status_code == 200
