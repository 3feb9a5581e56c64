"""/v1/files and /v1/batches, driven by the openai package."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from fake_engine import answer_text

from splitfuse.server.settings import Settings

OVER = ("completed", "failed", "expired", "cancelled")
FAKE = "fake-key"


@pytest.fixture
async def client(served: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=FAKE, max_retries=0) as client:
        yield client


def line(custom_id: str, prompt: str = "hello", *, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"prompt": prompt, "max_tokens": 4, **body}}


def jsonl(*lines: Any) -> bytes:
    return b"".join((entry if isinstance(entry, bytes) else json.dumps(entry).encode()) + b"\n" for entry in lines)


async def upload(client: openai.AsyncOpenAI, *lines: Any) -> str:
    return (await client.files.create(file=("input.jsonl", jsonl(*lines)), purpose="batch")).id


async def begin(client: openai.AsyncOpenAI, *lines: Any, endpoint: Any = "/v1/completions", **more: Any) -> Any:
    file_id = await upload(client, *lines)
    return await client.batches.create(input_file_id=file_id, endpoint=endpoint, **{"completion_window": "24h", **more})


async def ended(client: openai.AsyncOpenAI, batch: Any) -> Any:
    async with asyncio.timeout(60):
        while batch.status not in OVER:
            await asyncio.sleep(0.01)  # its end can only be polled for
            batch = await client.batches.retrieve(batch.id)
    return batch


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(text) for text in (await client.files.content(file_id)).text.splitlines()]


async def refusal(call: Any, status: int) -> Any:
    with pytest.raises(openai.APIStatusError) as refused:
        await call
    assert refused.value.status_code == status, refused.value
    return refused.value


async def test_a_batch_is_answered_line_by_line(served: Any, client: openai.AsyncOpenAI) -> None:
    batch = await begin(
        client, line("a"), line("b", "other"), line("c", temperature=-1), line("d", model="gpt"), metadata={"k": "v"}
    )
    assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"k": "v"})
    assert batch.expires_at == batch.created_at + 86_400
    done = await ended(client, batch)
    assert done.status == "completed", done
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (4, 2, 2)
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
    output = await lines_of(client, done.output_file_id)
    assert [answer["custom_id"] for answer in output] == ["a", "b"]
    for answer, prompt in zip(output, ("hello", "other"), strict=True):
        assert answer["id"].startswith("batch_req_")
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["body"]["choices"][0]["text"] == answer_text(prompt, num_tokens=4)
        assert answer["response"]["body"]["object"] == "text_completion"
    errors = await lines_of(client, done.error_file_id)
    assert [(answer["custom_id"], answer["response"]["status_code"]) for answer in errors] == [("c", 400), ("d", 404)]
    assert errors[0]["response"]["body"]["error"]["param"] == "temperature"
    assert served.engine.num_submitted == 2


@pytest.mark.parametrize(
    ("url", "body", "kind"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}, "chat.completion"),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 3}, "response"),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "n": 2, "logprobs": 1}, "text_completion"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}, "message"),
    ],
)
async def test_an_answer_is_what_the_endpoint_gives(
    served: Any, client: openai.AsyncOpenAI, url: str, body: dict[str, Any], kind: str
) -> None:
    batch = await begin(client, {"custom_id": "x", "method": "POST", "url": url, "body": body}, endpoint=url)
    (answered,) = await lines_of(client, (await ended(client, batch)).output_file_id)
    alone = (await served.client.post(url, json=body)).json()
    batched = answered["response"]["body"]
    assert (batched["type"] if kind == "message" else batched["object"]) == kind
    left_out = ("id", "created", "created_at", "output")
    assert {k: v for k, v in batched.items() if k not in left_out} == {
        k: v for k, v in alone.items() if k not in left_out
    }
    if kind == "response":
        assert batched["output"][0]["content"] == alone["output"][0]["content"]
        assert (await served.client.get(f"/v1/responses/{batched['id']}")).status_code == 404, "it is not kept"


async def test_generate_gives_its_result(served: Any, client: openai.AsyncOpenAI) -> None:
    batch = await begin(client, line("x", url="/generate"), endpoint="/generate")
    (answered,) = await lines_of(client, (await ended(client, batch)).output_file_id)
    assert answered["response"]["body"]["text"] == answer_text("hello", num_tokens=4)
    assert len(served.service.results) == 0


async def test_a_wrong_line_fails_the_batch(served: Any, client: openai.AsyncOpenAI) -> None:
    wrong: list[tuple[Any, str, str | None]] = [
        (b"{not json", "invalid_json_line", None),
        (b'{"custom_id": "x", "custom_id": "y"}', "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        ({"method": "POST", "url": "/v1/completions", "body": {}}, "missing_required_parameter", "custom_id"),
        (line("x") | {"custom_id": 3}, "invalid_type", "custom_id"),
        (line("x" * 600), "invalid_custom_id", "custom_id"),
        (line("x") | {"method": "GET"}, "invalid_method", "method"),
        (line("x", url="/v1/chat/completions"), "mismatched_url", "url"),
        (line("x") | {"body": []}, "invalid_type", "body"),
        (line("x", stream=True), "invalid_stream", "body.stream"),
        (line("first"), "duplicate_custom_id", "custom_id"),
    ]
    for bad, code, param in wrong:
        failed = await ended(client, await begin(client, line("first"), bad))
        assert failed.status == "failed", bad
        assert failed.failed_at is not None
        (error,) = failed.errors.data
        assert (error.code, error.line, error.param) == (code, 2, param)
        assert failed.output_file_id is failed.error_file_id is None
        assert served.engine.num_submitted == 0
    failed = await ended(client, await begin(client, b"", b"  "))
    assert failed.errors.data[0].code == "empty_file"


async def test_files_are_listed_read_and_deleted(client: openai.AsyncOpenAI) -> None:
    contents = jsonl(line("é")) + b"\r\n--tail without an end"
    first = await client.files.create(file=("ñ.jsonl", contents), purpose="batch")
    assert (first.bytes, first.filename, first.purpose, first.status) == (
        len(contents),
        "ñ.jsonl",
        "batch",
        "processed",
    )
    assert (await client.files.content(first.id)).content == contents
    others = [await upload(client, line(str(i))) for i in range(3)]
    assert [file.id async for file in client.files.list(limit=2)] == [*reversed(others), first.id]
    assert [file.id async for file in client.files.list(order="asc")] == [first.id, *others]
    assert [file.id async for file in client.files.list(purpose="batch_output")] == []
    assert (await client.files.retrieve(first.id)) == first
    assert (await client.files.delete(first.id)).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        assert (await refusal(call(first.id), 404)).code == "file_not_found"
    large = bytes(range(256)) * 2048
    kept = await client.files.create(
        file=("large", large), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert kept.expires_at == kept.created_at + 3600
    assert (await client.files.content(kept.id)).content == large


async def test_batches_are_listed_newest_first(client: openai.AsyncOpenAI) -> None:
    batches = [await begin(client, line("x")) for _ in range(3)]
    for batch in batches:
        await ended(client, batch)
    assert [batch.id async for batch in client.batches.list(limit=2)] == [batch.id for batch in reversed(batches)]


async def test_a_cancelled_batch_keeps_what_is_answered(served: Any, client: openai.AsyncOpenAI) -> None:
    served.engine.hold()
    batch = await begin(client, line("a"), line("b", "longer", max_tokens=6), line("c"))
    async with asyncio.timeout(60):
        while len(served.engine.handles) < 3:
            served.engine.submitted.clear()
            await served.engine.submitted.wait()
    cancelling = await client.batches.cancel(batch.id)
    assert cancelling.status == "cancelling"
    assert (await refusal(client.files.delete(batch.input_file_id), 400)).message.count(batch.id)
    done = await ended(client, cancelling)
    assert (done.status, done.output_file_id) == ("cancelled", None)
    assert done.cancelling_at <= done.cancelled_at
    assert (done.request_counts.total, done.request_counts.failed) == (3, 3)
    errors = await lines_of(client, done.error_file_id)
    assert [(answer["custom_id"], answer["response"]) for answer in errors] == [("a", None), ("b", None), ("c", None)]
    assert {answer["error"]["code"] for answer in errors} == {"batch_cancelled"}
    assert not served.engine.handles, "what ran was ended"
    assert "cancelled" in (await refusal(client.batches.cancel(batch.id), 400)).message
    assert (await client.files.delete(batch.input_file_id)).deleted


async def test_what_is_not_answered_in_time_expires(served: Any, client: openai.AsyncOpenAI) -> None:
    served.engine.hold()
    done = await ended(client, await begin(client, line("a"), completion_window="1s"))
    assert (done.status, done.request_counts.failed) == ("expired", 1)
    (error,) = await lines_of(client, done.error_file_id)
    assert error["error"]["code"] == "batch_expired"
    assert not served.engine.handles


async def test_a_failing_engine_fails_the_line(served: Any, client: openai.AsyncOpenAI) -> None:
    served.engine.fail_at = 2
    done = await ended(client, await begin(client, line("a")))
    (error,) = await lines_of(client, done.error_file_id)
    assert error["response"]["status_code"] == 500
    assert "secret" not in json.dumps(error)


@pytest.mark.parametrize("settings", [Settings(max_batch_requests=2)])
async def test_no_more_lines_than_that_are_in_the_engine(served: Any, client: openai.AsyncOpenAI) -> None:
    most, submit = 0, served.engine.submit

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal most
        handle = await submit(*args, **kwargs)
        most = max(most, len(served.engine.handles))
        assert handle.params.is_background
        return handle

    served.engine.submit = counted
    batches = [await begin(client, *(line(str(i)) for i in range(8))) for _ in range(2)]
    assert [(await ended(client, batch)).request_counts.completed for batch in batches] == [8, 8]
    assert most == 2


@pytest.mark.parametrize("settings", [Settings(max_file_bytes=100, max_total_file_bytes=250, max_batch_lines=2)])
async def test_limits_name_the_way_out(served: Any, client: openai.AsyncOpenAI) -> None:
    few = await client.files.create(file=b"{}\n{}\n{}\n", purpose="batch")
    refused = await refusal(
        client.batches.create(input_file_id=few.id, endpoint="/v1/completions", completion_window="24h"), 400
    )
    assert "--max-batch-lines" in refused.message
    assert "--max-file-bytes" in (await refusal(client.files.create(file=b"x" * 70_000, purpose="batch"), 413)).message
    assert "--max-file-bytes" in (await refusal(client.files.create(file=b"x" * 101, purpose="batch"), 413)).message
    for _ in range(2):
        await client.files.create(file=b"x" * 100, purpose="batch")
    full = await refusal(client.files.create(file=b"x" * 100, purpose="batch"), 413)
    assert "--max-total-file-bytes" in full.message
    await client.files.delete(few.id)


@pytest.mark.parametrize("settings", [Settings(max_body_bytes=1000)])
async def test_a_line_is_no_longer_than_a_body(served: Any, client: openai.AsyncOpenAI) -> None:
    assert "--max-body-bytes" in (await refusal(client.files.create(file=b"x" * 1001, purpose="batch"), 400)).message


async def test_a_wrong_batch_is_refused(client: openai.AsyncOpenAI) -> None:
    done = await ended(client, await begin(client, line("a")))
    wrong: list[tuple[dict[str, Any], str]] = [
        *(({"endpoint": "/v1/embeddings"}, "endpoint"), ({"metadata": {"k": 1}}, "metadata")),
        *(({"completion_window": window}, "completion_window") for window in ("soon", "99d")),
        *(({"input_file_id": file_id}, "input_file_id") for file_id in ("file-x", done.output_file_id)),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 0}}, "output_expires_after.seconds"),
    ]
    good = {"input_file_id": done.input_file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    for fields, param in wrong:
        assert (await refusal(client.batches.create(**{**good, **fields}), 400)).param == param, fields


async def test_a_wrong_form_or_page_is_refused(served: Any) -> None:
    multipart, named = "multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="%s"'
    for content_type, body, param in [
        *(("application/json", b"{}", "file"), ("multipart/form-data", b"--x\r\n", "file"), (multipart, b"", None)),
        *((multipart, b"--x\r\n\r\n", None), (multipart, b"--x\r\nA: b\r\n\r\nhi\r\n--x--", None)),
        (multipart, named % b"file" + b"\r\n\r\nhi\r\n--x--", "purpose"),
        (multipart, named % b"a" + b"\r\n\r\nhi\r\n--x--", "a"),
    ]:
        answer = await served.client.post("/v1/files", content=body, headers={"Content-Type": content_type})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    form = {"purpose": "batch", "expires_after[anchor]": "last_active_at", "expires_after[seconds]": "3600"}
    answer = await served.client.post("/v1/files", data=form, files={"file": b"{}"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "expires_after[anchor]")
    for query in ("limit=0", "limit=x", "limit=99999", "order=up"):
        assert (await served.client.get(f"/v1/files?{query}")).status_code == 400, query


@pytest.mark.parametrize("settings", [Settings(api_key=("ann", "ben"))])
async def test_no_owner_sees_another_s(served: Any) -> None:
    ann, ben = (openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0) for key in ("ann", "ben"))
    async with ann, ben:
        batch = await ended(ann, await begin(ann, line("a")))
        for file_id in (batch.input_file_id, batch.output_file_id):
            for call in (ben.files.retrieve, ben.files.content, ben.files.delete):
                assert (await refusal(call(file_id), 404)).code == "file_not_found"
        for call in (ben.batches.retrieve, ben.batches.cancel):
            assert (await refusal(call(batch.id), 404)).code == "batch_not_found"
        refused = await refusal(
            ben.batches.create(input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h"),
            400,
        )
        assert refused.param == "input_file_id"
        assert [found async for found in ben.files.list()] == [found async for found in ben.batches.list()] == []
        after = await served.client.get(
            f"/v1/files?after={batch.input_file_id}", headers={"Authorization": "Bearer ben"}
        )
        assert after.json()["data"] == []


async def test_the_same_key_is_the_same_batch(served: Any, client: openai.AsyncOpenAI) -> None:
    body = {"input_file_id": await upload(client, line("a")), "endpoint": "/v1/completions", "completion_window": "24h"}
    headers = {"Idempotency-Key": "k"}
    answers = await asyncio.gather(*(served.client.post("/v1/batches", json=body, headers=headers) for _ in range(20)))
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 19
    await ended(client, await client.batches.retrieve(answers[0].json()["id"]))
    again = await served.client.post("/v1/batches", json=body, headers=headers)
    assert (again.json()["status"], again.headers["idempotent-replayed"]) == ("completed", "true")
    refused = await served.client.post("/v1/batches", json={**body, "metadata": {}}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert served.engine.num_submitted == 1


async def test_a_draining_server_takes_no_batch(served: Any, client: openai.AsyncOpenAI) -> None:
    batch = await ended(client, await begin(client, line("a")))
    served.service.lifecycle.is_draining = True
    body = {"input_file_id": batch.input_file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    assert (await refusal(client.batches.create(**body), 503)).code == "draining"
    assert (await client.batches.retrieve(batch.id)).status == "completed", "what there is can be read"


async def test_the_end_of_a_server_ends_its_batches(served: Any, client: openai.AsyncOpenAI) -> None:
    served.engine.hold()
    await begin(client, line("a"))
    await served.engine.submitted.wait()
    await served.service.lifecycle.drain()
    assert not served.engine.handles
    answer = await served.client.get("/v1/batches")
    assert isinstance(answer, httpx.Response)
    assert answer.status_code == 503
