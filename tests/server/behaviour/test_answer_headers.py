"""Headers that every answer has, of what browsers may do with it, and bodies in encodings that are not read."""

import base64
import gzip
import hashlib
import json
import re

import pytest

HTML = {"Accept": "text/html"}
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n'


async def upload(served, name="a.jsonl", **options):
    files = {"file": (name, LINE)}
    return await served.client.post("/v1/files", files=files, data={"purpose": "batch"}, **options)


async def test_no_answer_is_sniffed(served):
    answers = [
        await served.client.get(path) for path in ("/", "/docs", "/health", "/metrics", "/<script>", "/page/main.js")
    ]
    answers += [
        await served.client.get("/", headers=HTML),
        await served.client.get("/health", headers={"Host": "evil.example"}),
        await served.client.get("/stats", headers={"Host": "evil.example"}),
        await served.client.post("/generate", content=b"nonsense"),
        await served.client.post("/generate", json={"prompt": "x", "stream": True, "max_tokens": 2}),
        await served.client.delete("/health"),
    ]
    assert {200, 400, 403, 404, 405} <= {answer.status_code for answer in answers}
    assert [answer.headers.get_list("x-content-type-options") for answer in answers] == [["nosniff"]] * len(answers)


async def test_the_page_of_routes_runs_its_own_script_alone(served):
    answer = await served.client.get("/docs")
    policy = answer.headers["content-security-policy"]
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not re.search(r" style=| on\w+=|innerHTML", answer.text), "the policy would stop it"


@pytest.mark.parametrize("name", ["a.jsonl", "evil.html", 'q"uo;te.html', "ñ.jsonl"])
async def test_a_file_is_an_attachment(served, name):
    file = (await upload(served, name)).json()
    answer = await served.client.get(f"/v1/files/{file['id']}/content")
    disposition = answer.headers["content-disposition"]
    assert re.fullmatch(r"attachment; filename\*=UTF-8''[\w.%~-]+", disposition, re.ASCII)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content == LINE


@pytest.mark.parametrize("encoding", ["br", "zstd", "BR", "gzip", "identity, gzip", "x"])
async def test_an_encoding_that_is_not_read_is_refused(served, encoding):
    body = json.dumps({"prompt": "x"}).encode()
    for content in (body, gzip.compress(body)):
        for path in ("/generate", "/v1/chat/completions", "/v1/messages", "/tokenize"):
            answer = await served.client.post(path, content=content, headers={"Content-Encoding": encoding})
            assert answer.status_code == 415, path
            assert encoding.lower() in answer.json()["error"]["message"]
    assert (await upload(served, headers={"Content-Encoding": encoding})).status_code == 415
    assert not served.engine.num_submitted


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
async def test_no_encoding_is_read(served, encoding):
    headers = {"Content-Encoding": encoding}
    assert (await served.client.post("/tokenize", json={"prompt": "x"}, headers=headers)).status_code == 200
