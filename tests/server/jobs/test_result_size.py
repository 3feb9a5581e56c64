"""The size of results with logprobs is bounded; the refusal names the way out, and the way out works."""

import re

import pytest

from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.errors import InvalidRequestError
from splitfuse.server.jobs.job import Job
from splitfuse.server.jobs.result_size import bounded
from splitfuse.server.settings import Settings

MAX_BYTES = Settings().max_result_bytes


def test_too_much_is_refused_and_the_named_number_is_taken():
    with pytest.raises(
        InvalidRequestError, match=r"n 64 x max_tokens 2000 x logprobs 20 .* --max-result-bytes"
    ) as refusal:
        bounded(SamplingParams(n=64, max_tokens=2000, logprobs=20), max_bytes=MAX_BYTES)
    assert refusal.value.param == "max_tokens"
    most = int(re.search(r"max_tokens to (\d+) or less", str(refusal.value))[1])
    params = SamplingParams(n=64, max_tokens=most, logprobs=20)
    assert bounded(params, max_bytes=MAX_BYTES) is params
    with pytest.raises(InvalidRequestError):
        bounded(SamplingParams(n=64, max_tokens=most + 1, logprobs=20), max_bytes=MAX_BYTES)


def test_refusals_call_fields_as_the_request_does():
    names = {"max_tokens": "max_completion_tokens", "logprobs": "top_logprobs"}
    with pytest.raises(InvalidRequestError, match="max_completion_tokens 100000 x top_logprobs 20"):
        bounded(SamplingParams(max_tokens=10**5, logprobs=20, names=names), max_bytes=MAX_BYTES)
    with pytest.raises(InvalidRequestError, match="max_length 100000 "):
        bounded(SamplingParams(max_length=10**5, logprobs=20), max_bytes=MAX_BYTES)


@pytest.mark.parametrize("default", [None, 10**5])
def test_a_default_is_cut(default):
    params = bounded(SamplingParams(logprobs=20, default_max_tokens=default), max_bytes=MAX_BYTES)
    assert (params.max_tokens, params.default_max_tokens) == (None, 95_801)
    assert bounded(SamplingParams(logprobs=20), max_bytes=1).default_max_tokens == 1


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(n=64, max_tokens=10**6),
        SamplingParams(n=64, default_max_tokens=None),
        SamplingParams(n=16, max_tokens=600, logprobs=20),
        SamplingParams(logprobs=0, max_length=10**5),
        SamplingParams(n=64, logprobs=20),
    ],
    ids=str,
)
def test_the_rest_is_left_as_it_is(params):
    assert bounded(params, max_bytes=MAX_BYTES) is params


@pytest.mark.parametrize("settings", [Settings(max_result_bytes=100_000)])
async def test_a_result_stays_within_the_bound(served):
    fields = {"prompt": "x", "logprobs": 20, "n": 2}
    refusal = (await served.client.post("/generate", json=fields | {"max_tokens": 60})).json()["error"]
    most = int(re.search(r"max_tokens to (\d+) or less", refusal["message"])[1])
    url = (await served.client.post("/generate", json=fields | {"max_tokens": most})).json()["result_url"]
    assert (await served.client.get(url + "?wait=60")).json()["status"] == "completed"
    job: Job = served.service.results.get(url.rpartition("/")[2], owner="")
    assert 50_000 < job.num_bytes <= 100_000
    assert (await served.client.post("/generate", json=fields)).status_code == 202
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 20, "max_tokens": 60}
    refusal = (await served.client.post("/v1/chat/completions", json=chat)).json()["error"]
    assert "n 1 x max_tokens 60 x top_logprobs 20" in refusal["message"]
