"""Clients against `splitfuse serve` itself, on the demo model."""

import asyncio
import dataclasses
import itertools

import pytest

from splitfuse.client import AsyncClient, AuthenticationError, BadRequestError, Client, NotFoundError, Result, Server
from splitfuse.client.bench import cli
from splitfuse.client.sampling import Sampling
from splitfuse.engine.core.sampling_params import FIELD_NAMES

from .conftest import KEY, MakeCaller
from .cutting_proxy import CuttingProxy

PROMPT = "Once upon a time"
GREEDY: Sampling = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def answer(server: Server) -> Result:
    """Return the result with which other answers are compared."""
    return server.client.generate(PROMPT, **GREEDY)


def test_generate(answer: Result) -> None:
    assert (answer.status, answer.finish_reason, len(answer.token_ids)) == ("completed", "length", 12)
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.text == answer.outputs[0].text != ""
    assert answer.timings.e2e_s is not None
    assert answer.timings.e2e_s > 0
    assert answer.error is None


def test_stream_and_poll_tell_the_same(make_caller: MakeCaller, server: Server, answer: Result) -> None:
    caller = make_caller(server.base_url, api_key=KEY)
    job = caller.submit(PROMPT, **GREEDY)
    assert caller.result(job, wait=30).token_ids == answer.token_ids
    for stream in (job.stream(), caller.stream(PROMPT, **GREEDY)):
        events = caller.events(stream)
        assert "".join(event.text for event in events) == answer.text
        assert list(itertools.chain(*(event.token_ids for event in events))) == answer.token_ids
        assert stream.result is not None
        assert stream.result.text == answer.text
    rest = caller.events(job.stream(starting_after=events[3].id))
    assert [event.text for event in rest] == [event.text for event in events[4:]]


def test_several_outputs_are_told_apart_by_their_index(make_caller: MakeCaller, server: Server) -> None:
    caller = make_caller(server.base_url, api_key=KEY)
    stream = caller.stream(PROMPT, n=3, seed=1, max_tokens=6, ignore_eos=True)
    events = caller.events(stream)
    texts = ["".join(event.text for event in events if event.index == index) for index in range(3)]
    assert [output.text for output in stream.result.outputs] == texts


def test_a_stream_cut_anywhere_is_whole(server: Server, answer: Result) -> None:
    with CuttingProxy(server.base_url) as proxy, Client(proxy.url, KEY) as client:
        client.retry_policy = dataclasses.replace(client.retry_policy, first_backoff_s=0.002)
        job = client.submit(PROMPT, **GREEDY)
        for limit in range(150, 1500, 90):
            proxy.limits.extend([limit, limit + 40])
            events = list(job.stream())
            assert "".join(event.text for event in events) == answer.text
            assert [event.id for event in events] == list(range(len(events)))
            proxy.limits.clear()
        assert proxy.num_cuts >= 15  # at least one per limit


def test_leaving_early_cancels_and_forgets(make_caller: MakeCaller, server: Server) -> None:
    caller = make_caller(server.base_url, api_key=KEY)
    stream = caller.stream(PROMPT, max_tokens=1000, ignore_eos=True)
    caller.events(stream, at_most=2)
    with pytest.raises(NotFoundError):
        caller.result(caller.client.job(stream.seq_id), wait=0)


def test_refusals_arrive_as_the_errors_they_are(make_caller: MakeCaller, server: Server) -> None:
    caller = make_caller(server.base_url, api_key=KEY)
    with pytest.raises(BadRequestError) as caught:
        caller.generate(PROMPT, max_tokens=-1)
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")
    with pytest.raises(BadRequestError, match="nonsense"):
        caller.generate(PROMPT, nonsense=1)
    with pytest.raises(BadRequestError):
        caller.generate("\ud800")
    with pytest.raises(NotFoundError):
        caller.result(caller.client.job("no-such-result"))
    with pytest.raises(NotFoundError):
        caller.generate(PROMPT, model="another")
    with pytest.raises(AuthenticationError):
        make_caller(server.base_url, api_key="wrong").generate(PROMPT)


def test_results_are_listed_and_deleted(make_caller: MakeCaller, server: Server) -> None:
    caller = make_caller(server.base_url, api_key=KEY)
    caller.run(caller.client.delete_results())
    jobs = [caller.submit(PROMPT, max_tokens=2, ttl_s=600, idempotency_key=f"list {index}") for index in range(101)]
    assert caller.submit(PROMPT, max_tokens=2, ttl_s=600, idempotency_key="list 7").seq_id == jobs[7].seq_id
    for job in jobs:
        caller.result(job)
    listed = caller.collect(caller.client.results())
    assert [result.seq_id for result in listed] == [job.seq_id for job in reversed(jobs)], "over two pages"
    assert all(result.created_at for result in listed)
    assert caller.collect(caller.client.results(status="failed")) == []
    assert caller.run(caller.client.delete_results()) == len(jobs)
    assert caller.collect(caller.client.results()) == []


async def test_many_at_once(server: Server, answer: Result) -> None:
    async with AsyncClient(server.base_url, api_key=KEY) as client:
        results = await asyncio.gather(*(client.generate(PROMPT, **GREEDY) for _ in range(16)))
    assert {result.text for result in results} == {answer.text}


def test_bench_serve_runs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    argv = "--num-prompts 4 --random-input-len 16 --random-output-len 8 --ignore-eos --max-concurrency 2"
    assert cli.main(["--base-url", server.base_url, "--api-key", KEY, *argv.split()]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Successful requests: 4" in out
    assert "Total input tokens: 64 Total generated tokens: 32" in out


def test_every_sampling_field_of_the_engine_has_a_keyword() -> None:
    of_the_endpoint = {
        "model",
        "receipt",
        "response_format",
        "return_token_ids",
        "ttl_s",
    }  # response_format becomes structured_outputs
    assert set(Sampling.__annotations__) - of_the_endpoint == FIELD_NAMES


def test_a_batch_is_answered_in_order(make_caller: MakeCaller, server: Server, answer: Result) -> None:
    caller = make_caller(server.base_url, api_key=KEY)
    bodies = [{"prompt": prompt, **GREEDY} for prompt in ("The little dog", PROMPT, "It")]
    refused = {"prompt": "x", "temperature": -1}
    answers = caller.run(caller.client.batch([*bodies, refused], endpoint="/v1/completions"))
    assert len(answers) == 4
    assert answers[1]["choices"][0]["text"] == answer.text
    assert "temperature" in answers[3]["error"]["message"]
    with pytest.raises(BadRequestError, match="endpoint"):
        caller.run(caller.client.batch(bodies, endpoint="/v1/nothing"))
