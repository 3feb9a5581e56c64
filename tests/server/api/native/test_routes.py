"""The native routes through a loopback socket: submit, poll, cancel, refusals."""

import asyncio

import pytest
from fake_engine import answer_text
from serving import parse_events, stream_events

from splitfuse.engine.errors import ConfigError, RequestFailedError, UnavailableError

TIMINGS = {"queue_s", "ttft_s", "decode_s", "e2e_s", "tokens_per_s", "num_preemptions"}


async def submit(served, **fields):
    response = await served.client.post("/generate", json={"prompt": "hello", "max_tokens": 5, **fields})
    assert response.status_code == 202, response.text
    return response.json()


async def test_submit_answers_where_to_look(served):
    response = await served.client.post("/generate", json={"prompt": "hello"})
    body = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"/result/{body['seq_id']}" == body["result_url"]
    assert response.headers["retry-after"] == "1"
    assert body == {
        "seq_id": body["seq_id"],
        "status": "queued",
        "result_url": f"/result/{body['seq_id']}",
        "stream_url": f"/result/{body['seq_id']}/stream",
    }
    assert len(body["seq_id"]) == 32


async def test_result_is_as_the_contract_says(served):
    seq_id = (await submit(served))["seq_id"]
    body = (await served.client.get(f"/result/{seq_id}?wait=60")).json()
    text = answer_text("hello", num_tokens=5)
    token_ids = list(text.encode())
    timings = body.pop("timings")
    assert set(timings) == TIMINGS
    assert timings["num_preemptions"] == 1
    assert timings["tokens_per_s"] > 0
    assert body == {
        "seq_id": seq_id,
        "status": "completed",
        "model": "splitfuse-demo-5m",
        "text": text,
        "token_ids": token_ids,
        "finish_reason": "length",
        "stop_reason": None,
        "outputs": [
            {
                "index": 0,
                "text": text,
                "token_ids": token_ids,
                "finish_reason": "length",
                "stop_reason": None,
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10, "cached_tokens": 2},
        "weights_version": 0,
        "error": None,
    }


async def test_status_goes_from_queued_over_running_to_completed(served):
    served.engine.hold()
    url = (await submit(served))["result_url"]
    body = (await served.client.get(url)).json()
    assert (body["status"], body["text"], body["finish_reason"]) == ("queued", "", None)
    assert body["usage"]["prompt_tokens"] == 5
    async with served.client.stream("GET", url + "/stream") as stream:
        events = stream_events(stream)
        await served.engine.allow(2)
        await anext(events)
        await anext(events)
        body = (await served.client.get(url)).json()
        assert (body["status"], body["text"]) == ("running", answer_text("hello", num_tokens=2))
    await served.engine.allow()
    assert (await served.client.get(url + "?wait=60")).json()["status"] == "completed"


async def test_a_read_does_not_delete(served):
    url = (await submit(served))["result_url"]
    first = await served.client.get(url + "?wait=60")
    assert (await served.client.get(url)).content == first.content


async def test_prompt_of_ids_equals_prompt_of_text(served):
    url = (await submit(served, prompt=list(b"hello")))["result_url"]
    assert (await served.client.get(url + "?wait=60")).json()["text"] == answer_text("hello", num_tokens=5)


async def test_n_outputs(served):
    url = (await submit(served, n=3, logprobs=1))["result_url"]
    body = (await served.client.get(url + "?wait=60")).json()
    assert [output["text"] for output in body["outputs"]] == [
        answer_text("hello", num_tokens=5, index=index) for index in range(3)
    ]
    assert body["text"] == body["outputs"][0]["text"]
    assert body["usage"]["completion_tokens"] == 15
    first = body["outputs"][0]["logprobs"][0]
    assert first == {"token_id": body["token_ids"][0], "logprob": -9999.0, "top": [{"token_id": 97, "logprob": -0.5}]}


async def test_wait_out_of_range(served):
    url = (await submit(served))["result_url"]
    for wait in ("-1", "61", "nan", "inf", "abc", "", "1e999"):
        response = await served.client.get(f"{url}?wait={wait}")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "wait"), wait


async def test_long_poll_wakes_at_the_end(served):
    served.engine.hold()
    url = (await submit(served))["result_url"]
    poll = asyncio.create_task(served.client.get(url + "?wait=60"))
    async with served.client.stream("GET", url + "/stream") as stream:
        await served.engine.allow(2)
        await anext(stream_events(stream))
        assert not poll.done()
        await served.engine.allow()
        assert (await poll).json()["status"] == "completed"


async def test_who_waits_is_told_when_the_server_leaves_the_job_to_another(served):
    served.engine.hold()
    accepted = await submit(served)
    job = served.service.results.get(accepted["seq_id"], owner="")
    poll = asyncio.create_task(served.client.get(accepted["result_url"] + "?wait=60"))
    async with served.client.stream("GET", accepted["stream_url"]) as stream:
        await served.engine.allow(2)
        await anext(stream_events(stream))  # the poll came before it and waits now
        job.suspend()
    response = await poll
    assert (response.status_code, response.json()["error"]["code"]) == (503, "resuming")
    assert "retry-after" in response.headers


async def test_long_poll_returns_when_the_time_is_over(served):
    served.engine.hold()
    url = (await submit(served))["result_url"]
    assert (await served.client.get(url + "?wait=0.05")).json()["status"] == "queued"


async def test_delete_cancels_and_forgets(served):
    served.engine.hold()
    body = await submit(served)
    response = await served.client.delete(body["result_url"])
    assert response.status_code == 200
    assert response.json() == {"seq_id": body["seq_id"], "status": "cancelled", "deleted": True}
    assert served.engine.aborted == [body["seq_id"]]
    absent = await served.client.get("/result/" + "x" * 32)
    for method, path in [("GET", ""), ("GET", "/stream"), ("DELETE", "")]:
        response = await served.client.request(method, body["result_url"] + path)
        assert (response.status_code, response.content) == (404, absent.content)


async def test_delete_of_a_finished_result(served):
    url = (await submit(served))["result_url"]
    await served.client.get(url + "?wait=60")
    assert (await served.client.delete(url)).json()["status"] == "completed"
    assert served.engine.aborted == []
    assert len(served.service.results) == 0


async def test_failure_in_the_engine(served):
    served.engine.fail_at = 2
    url = (await submit(served))["result_url"]
    body = (await served.client.get(url + "?wait=60")).json()
    assert (body["status"], body["finish_reason"], len(body["token_ids"])) == ("failed", "error", 2)
    error = {
        "message": "internal error; the server's log has it under eeeeeeee",
        "type": "server_error",
        "param": None,
        "code": "eeeeeeee",
    }
    assert body["error"] == error
    events = parse_events((await served.client.get(url + "/stream")).text)
    assert [event["event"] for event in events] == ["token", "token", "error"]
    assert events[-1]["data"] == {"error": error}


async def test_queue_full(served):
    served.engine.queue_is_full = True
    response = await served.client.post("/generate", json={"prompt": "hello"})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert response.json()["error"]["code"] == "queue_full"
    assert len(served.service.results) == 0


@pytest.mark.parametrize("error", [UnavailableError("not now"), RequestFailedError("inside", error_id="abc")])
async def test_refusals_leave_nothing_behind(served, error):
    served.engine.submit_error = error
    response = await served.client.post("/generate", json={"prompt": "hello"})
    assert response.status_code == (503 if isinstance(error, UnavailableError) else 500)
    assert "inside" not in response.text
    assert len(served.service.results) == 0


async def test_a_bug_and_a_model_folder_found_broken_late_are_a_500_with_an_id_in_the_log(served, caplog):
    for bug in (ConfigError("/models/secret: chat_template is broken"), KeyError("secret")):
        served.engine.submit_error = bug
        response = await served.client.post("/generate", json={"prompt": "hello"})
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (500, "server_error")
        assert "secret" not in response.text
        record = [record for record in caplog.records if record.exc_info][-1]
        assert error["code"] in record.getMessage()
        assert record.exc_info[1] is bug


async def test_another_models_name(served):
    response = await served.client.post("/generate", json={"prompt": "hello", "model": "other"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("not_found_error", "model_not_found")
    assert "splitfuse-demo-5m" in error["message"]


async def test_request_id_is_echoed_or_made(served):
    for given, is_kept in [("my-id_1", True), ("x" * 128, True), ("x" * 129, False), ("", False), ("tab\there", False)]:
        response = await served.client.get("/health", headers={"X-Request-Id": given})
        assert (response.headers["x-request-id"] == given) is is_kept
        assert response.headers["x-request-id"]


async def test_one_request_id_for_many_requests(served):
    """A client's id is a label, never a key: the answers do not mix."""
    prompts = [f"prompt {number}" for number in range(32)]
    responses = await asyncio.gather(
        *(
            served.client.post(
                "/generate", json={"prompt": prompt, "max_tokens": 5, "stream": True}, headers={"X-Request-Id": "same"}
            )
            for prompt in prompts
        )
    )
    for prompt, response in zip(prompts, responses, strict=True):
        assert parse_events(response.text)[-1]["data"]["text"] == answer_text(prompt, num_tokens=5)
    assert len({response.headers["x-seq-id"] for response in responses}) == 32


async def test_results_are_listed_newest_first_and_in_pages(served):
    ids = [(await submit(served))["seq_id"] for _ in range(5)]
    await asyncio.gather(*(served.client.get(f"/result/{seq_id}?wait=60") for seq_id in ids))
    first = (await served.client.get("/results?limit=3")).json()
    assert (first["object"], first["has_more"]) == ("list", True)
    assert [result["seq_id"] for result in first["data"]] == ids[:1:-1]
    assert first["last_id"] == ids[2]
    assert all("outputs" not in result and result["status"] == "completed" for result in first["data"])
    rest = (await served.client.get(f"/results?after={first['last_id']}")).json()
    assert ([result["seq_id"] for result in rest["data"]], rest["has_more"]) == (ids[1::-1], False)
    none = (await served.client.get("/results?status=failed")).json()
    assert none == {"object": "list", "data": [], "has_more": False, "last_id": None}


async def test_a_page_that_cannot_be_is_refused(served):
    for query in ("limit=0", "limit=101", "limit=x", "status=done", "limit=-1"):
        assert (await served.client.get(f"/results?{query}")).status_code == 400, query
    assert (await served.client.get("/results?after=unknown")).status_code == 404


async def test_all_results_are_deleted_at_once(served):
    ids = [(await submit(served, max_tokens=64))["seq_id"] for _ in range(3)]
    assert (await served.client.delete("/results")).json() == {"deleted": 3}
    for seq_id in ids:
        assert (await served.client.get(f"/result/{seq_id}")).status_code == 404
    assert (await served.client.delete("/results")).json() == {"deleted": 0}


async def test_prefer_wait_answers_with_the_result_if_it_is_there_in_time(served):
    body = {"prompt": "hello", "max_tokens": 5}
    answer = await served.client.post("/generate", json=body, headers={"Prefer": "respond-async, wait=5"})
    assert (answer.status_code, answer.headers["preference-applied"]) == (200, "wait=5")
    assert answer.json()["status"] == "completed"
    served.engine.hold()
    answer = await served.client.post("/generate", json=body, headers={"Prefer": "wait=1"})
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=1")
    later = await served.client.get(answer.json()["result_url"], headers={"Prefer": "wait=0"})
    assert later.json()["status"] in ("queued", "running")


async def test_a_preference_that_is_none_is_ignored_and_a_lifetime_refused(served):
    for header in ("wait", "wait=x", "wait=-1", "respond-async", "wait=99999999999", ""):
        answer = await served.client.post("/generate", json={"prompt": "hello"}, headers={"Prefer": header})
        assert (answer.status_code, "preference-applied" in answer.headers) == (202, False), header
    for ttl_s in (0, -1, "1", True):
        answer = await served.client.post("/generate", json={"prompt": "hello", "ttl_s": ttl_s})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "ttl_s"), ttl_s
