"""submit, wait, generate, cancel: over real HTTP, with both clients."""

import json

import pytest

from splitfuse.client import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    Output,
    QueueFullError,
    ServerError,
    Timings,
    Usage,
)

from .callers import Caller
from .conftest import MakeCaller
from .stand_in import SEQ_ID, TEXT, Script, StandIn, page, refusal


def test_generate_returns_the_typed_result(caller: Caller, script: Script) -> None:
    script.unfinished_polls = 1
    result = caller.generate("text", max_tokens=8)
    assert (result.seq_id, result.status, result.text, result.finish_reason) == (SEQ_ID, "completed", TEXT, "length")
    assert result.token_ids == list(range(8))
    assert result.is_finished
    assert result.outputs == [Output(0, TEXT, list(range(8)), "length")]
    assert result.usage == Usage(5, 8, 13, 0)
    assert result.timings == Timings(queue_s=0.1, ttft_s=0.2)
    assert result.error is None
    assert script.bodies == [{"prompt": "text", "max_tokens": 8}]
    assert all("?wait=30" in path for path in script.paths("GET"))


def test_a_prompt_may_be_token_ids_and_none_is_left_out(caller: Caller, script: Script) -> None:
    caller.generate((5, 6), temperature=0, stop=None)
    assert script.bodies == [{"prompt": [5, 6], "temperature": 0}]


def test_what_the_server_must_judge_reaches_it(caller: Caller, script: Script) -> None:
    caller.generate("\ud800", temperature=float("inf"))
    assert script.bodies == [{"prompt": "\ud800", "temperature": float("inf")}]


def test_a_prompt_of_floats_never_leaves(caller: Caller, script: Script) -> None:
    with pytest.raises(TypeError):
        caller.generate([1.5])
    assert script.bodies == []


def test_a_job_can_be_read_waited_for_and_cancelled(caller: Caller, script: Script) -> None:
    script.unfinished_polls = 1
    job = caller.submit("text", max_tokens=8)
    assert job.seq_id == SEQ_ID
    partial = caller.result(job, wait=0)
    assert (partial.status, partial.text, partial.is_finished) == ("running", "Once upon", False)
    assert caller.result(job, wait=30).text == TEXT
    assert caller.result(caller.client.job(SEQ_ID)).text == TEXT
    caller.run(job.cancel())
    assert script.paths("DELETE") == [f"/result/{SEQ_ID}"]
    assert SEQ_ID in repr(job)


def test_result_returns_the_unfinished_result_when_the_wait_is_over(caller: Caller, script: Script) -> None:
    script.unfinished_polls, script.honours_wait = 1000, True
    assert caller.result(caller.client.job(SEQ_ID), wait=0.05).status == "running"
    assert script.paths("GET")[0].partition("=")[2] in ("0.05", "0.049")


def test_a_server_that_ignores_wait_is_polled_with_backoff(caller: Caller, script: Script) -> None:
    script.unfinished_polls = 3
    assert caller.generate("text").text == TEXT
    assert len(script.paths("GET")) == 4


def test_generate_ends_at_the_deadline_and_cancels(make_caller: MakeCaller, stand_in: StandIn) -> None:
    stand_in.script.unfinished_polls, stand_in.script.honours_wait = 1000, True
    with pytest.raises(APITimeoutError) as caught:
        make_caller(stand_in.url, timeout=1).generate("text")
    assert isinstance(caught.value, APIConnectionError)
    assert stand_in.script.cancelled.is_set()


def test_a_failed_request_raises_from_generate_and_is_a_result_of_its_job(caller: Caller, script: Script) -> None:
    script.error = {"message": "it broke", "type": "server_error", "param": None, "code": "nan", "new": 1}
    with pytest.raises(ServerError, match="it broke") as caught:
        caller.generate("text")
    assert caught.value.code == "nan"
    result = caller.result(caller.client.job(SEQ_ID))
    assert result.status == "failed"
    assert result.error is not None
    assert result.error.message == "it broke"
    assert not script.cancelled.is_set()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequestError), (413, BadRequestError), (422, BadRequestError), (401, AuthenticationError),
        (403, AuthenticationError), (404, NotFoundError), (429, QueueFullError), (500, ServerError), (503, ServerError),
        (302, APIError),
    ],
)  # fmt: skip
def test_each_status_has_its_error(
    make_caller: MakeCaller, stand_in: StandIn, status: int, kind: type[APIError]
) -> None:
    stand_in.script.faults["submit"].append(refusal(status, param="stop", code="why", retry_after="7"))
    with pytest.raises(APIError, match=f"refused with {status}") as caught:
        make_caller(stand_in.url, max_retries=0).generate("text")
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.param, error.code, error.retry_after) == (status, "stop", "why", 7.0)


def test_an_answer_without_envelope_is_shown(make_caller: MakeCaller, stand_in: StandIn) -> None:
    stand_in.script.faults["submit"].extend([page(502, "Bad Gateway"), page(500, '{"error": "plain"}')])
    caller = make_caller(stand_in.url, max_retries=0)
    with pytest.raises(ServerError, match=r"502.*Bad Gateway"):
        caller.generate("text")
    with pytest.raises(ServerError, match="500"):
        caller.generate("text")


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", json.dumps({"seq_id": 5})])
def test_another_server_on_that_port_is_recognized(caller: Caller, script: Script, body: str) -> None:
    script.faults["submit"].append(page(200, body))
    with pytest.raises(APIError, match="is this a splitfuse server"):
        caller.generate("text")
    script.faults["read"].append(page(200, body))
    with pytest.raises(APIError, match="is this a splitfuse server"):
        caller.generate("text")


def test_no_server_names_the_way_out(make_caller: MakeCaller, closed_port: int) -> None:
    with pytest.raises(APIConnectionError, match="is the server running\\? splitfuse serve") as caught:
        make_caller(f"http://127.0.0.1:{closed_port}").generate("text")
    assert caught.value.status is None


def test_url_and_key_come_from_the_environment(
    make_caller: MakeCaller, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPLITFUSE_BASE_URL", stand_in.url.removeprefix("http://") + "/")
    monkeypatch.setenv("SPLITFUSE_API_KEY", "first, second")
    make_caller().generate("text")
    make_caller(api_key="own").generate("text")
    make_caller(api_key="").generate("text")
    sent = [headers.get("authorization") for headers in stand_in.script.headers]
    assert list(dict.fromkeys(sent)) == ["Bearer first", "Bearer own", None]
    assert "first" not in repr(make_caller().client)


def test_ready_and_healthy(caller: Caller, make_caller: MakeCaller, script: Script, closed_port: int) -> None:
    assert caller.run(caller.client.is_ready())
    assert caller.run(caller.client.is_healthy())
    script.faults["plain"].append(refusal(503))
    assert not caller.run(caller.client.is_ready())
    nowhere = make_caller(f"http://127.0.0.1:{closed_port}")
    assert not nowhere.run(nowhere.client.is_ready())
    assert script.paths("GET") == ["/ready", "/health", "/ready"]
