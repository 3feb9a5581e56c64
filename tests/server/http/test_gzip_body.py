"""Bodies that came packed: the same as plain ones, bounded by what they unpack to."""

import gzip
import json
import tracemalloc
import zlib

import pytest

from splitfuse.server.settings import Settings

HEADERS = {"Content-Encoding": "gzip"}
BODY = json.dumps({"prompt": "hello " * 300}).encode()
EMPTY_BLOCK = b"\x00\x00\x00\xff\xff"  # of deflate, stored: it unpacks to nothing


async def post(served, content, path="/tokenize", headers=HEADERS):
    return await served.client.post(path, content=content, headers=headers)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP"])
async def test_a_packed_body_is_read_like_a_plain_one(served, encoding):
    plain = (await served.client.post("/tokenize", content=BODY)).json()
    answer = await post(served, gzip.compress(BODY), headers={"Content-Encoding": encoding})
    assert (answer.status_code, answer.json()) == (200, plain)


async def test_an_upload_may_be_packed(served):
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n'
    form = {"file": ("a.jsonl", line)}
    request = served.client.build_request("POST", "/v1/files", files=form, data={"purpose": "batch"})
    headers = {**HEADERS, "Content-Type": request.headers["content-type"]}
    answer = await post(served, gzip.compress(request.read()), "/v1/files", headers)
    assert (answer.status_code, answer.json()["bytes"]) == (200, len(line))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (BODY, "its bytes are not"),
        (zlib.compress(BODY), "its bytes are not"),
        (gzip.compress(BODY)[:-1], "was it cut"),
        (b"", "was it cut"),
        (gzip.compress(BODY) + b"x", "behind its gzip stream"),
        (gzip.compress(b"[1]"), "must be a JSON object"),
    ],
    ids=["plain", "zlib", "cut", "empty", "more behind", "a list"],  # gzip's header holds the time
)
async def test_a_broken_one_is_refused(served, content, word):
    answer = await post(served, content)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert word in answer.json()["error"]["message"]


@pytest.mark.parametrize("settings", [Settings(max_body_bytes=100_000)])
async def test_a_bomb_is_refused_with_little_memory(served):
    bomb = gzip.compress(bytes(60 * 2**20))
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        answer = await post(served, bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert peak < 4 * 2**20


@pytest.mark.parametrize("settings", [Settings(max_body_bytes=100_000)])
async def test_packed_bytes_without_content_are_bounded_too(served):
    async def endless():
        yield gzip.compress(b"")[:10]
        for _ in range(1000):
            yield EMPTY_BLOCK * 100

    answer = await post(served, endless())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
