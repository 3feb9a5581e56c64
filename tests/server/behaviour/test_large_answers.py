"""An answer of many megabytes: written in slices, so that streams beside it notice nothing."""

import asyncio
import contextlib
import gc
import json
import socket
import time
from dataclasses import dataclass

import httpx
import pytest
from serving import parse_events

from splitfuse.engine.core.outputs import OutputDelta, RequestMetrics, TokenLogprobs
from splitfuse.engine.serving.request_output import CompletionOutput
from splitfuse.server.api.chat.answer_format import AnswerFormat
from splitfuse.server.api.chat.model_text import ShownToken
from splitfuse.server.apis.openai.chat_response import ChatResponseBuilder
from splitfuse.server.apis.openai.completion_response import CompletionResponseBuilder
from splitfuse.server.apis.openai.request import Echo, Shown
from splitfuse.server.apis.openai.response import Head
from splitfuse.server.apis.responses.request import StoredRequest
from splitfuse.server.http.json_response import ITEMS_AT_ONCE, SLICE_BYTES, dumps, json_slices
from splitfuse.server.jobs.job import Job

NUM_OUTPUTS, NUM_TOKENS, NUM_LOGPROBS = 64, 300, 20
MAX_CPU_S = 0.1  # one slice takes 3 ms
MAX_SHARE = 0.2  # largest share of one turn: where other machines' time counts as ours, one took 0.18 s
METRICS = RequestMetrics(1.0, 1.5, 2.0, 4.0, 5, NUM_TOKENS, 2, 0)


def fill(job, *, num_tokens=NUM_TOKENS):
    """End the outputs, as the engine would; what there is beyond NUM_OUTPUTS runs on."""
    for index in range(min(NUM_OUTPUTS, len(job.outputs))):
        logprobs = tuple(
            TokenLogprobs(97, -0.123456 - position, tuple((97 + rank, -0.5 - rank / 7) for rank in range(NUM_LOGPROBS)))
            for position in range(num_tokens)
        )
        end = {"finish_reason": "length", "metrics": METRICS}
        job.sink(OutputDelta(job.seq_id, index, "a" * num_tokens, (97,) * num_tokens, logprobs, **end))


@dataclass
class Turns:
    """Turns of a task that runs beside the block, and the longest time that the loop computed between two of them.

    Times are CPU time, because other processes of a busy machine also move the clock.
    """

    num: int = 0
    longest_s: float = 0.0
    total_s: float = 0.0

    def check(self, num_bytes):
        """Check that another task ran after every slice of the answer."""
        assert self.num > num_bytes // (2 * SLICE_BYTES)
        assert self.longest_s < max(MAX_CPU_S, MAX_SHARE * self.total_s)


@contextlib.asynccontextmanager
async def ticking():
    """Yield the turns of a task beside the block."""
    turns = Turns()

    async def tick():
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            turns.longest_s = max(turns.longest_s, now - last)
            turns.total_s += now - last
            turns.num += 1
            last = now

    task = asyncio.create_task(tick())
    gc.disable()  # its pauses, over the 400 000 objects of the fake result, are not what is measured
    try:
        yield turns
    finally:
        gc.enable()
        task.cancel()


def expected_output(index):
    top = [{"token_id": 97 + rank, "logprob": -0.5 - rank / 7} for rank in range(NUM_LOGPROBS)]
    return {
        "index": index,
        "text": "a" * NUM_TOKENS,
        "token_ids": [97] * NUM_TOKENS,
        "finish_reason": "length",
        "stop_reason": None,
        "logprobs": [{"token_id": 97, "logprob": -0.123456 - position, "top": top} for position in range(NUM_TOKENS)],
    }


async def test_a_large_result_lets_others_have_their_turn(served):
    job = Job("large", model="m", num_outputs=NUM_OUTPUTS)
    served.service.results.add(job)
    fill(job)
    async with ticking() as turns:
        polled = await served.client.get("/result/large")
        streamed = await served.client.get("/result/large/stream?starting_after=63")
    assert len(polled.content) > 15e6
    assert int(polled.headers["content-length"]) == len(polled.content)
    body = polled.json()
    assert dumps(body) == polled.text, "compact, as always"
    assert list(body) == [
        *("seq_id", "status", "model", "text", "token_ids", "finish_reason", "stop_reason"),
        *("outputs", "usage", "timings", "error"),
    ]
    assert body["outputs"] == [expected_output(index) for index in range(NUM_OUTPUTS)]
    (done,) = parse_events(streamed.text)
    assert (done["event"], done["id"], done["data"]) == ("done", "64", body)
    turns.check(len(polled.content) + len(streamed.content))


async def test_a_large_openai_answer_lets_others_have_their_turn(served, monkeypatch):
    job = Job("large", model="m", num_outputs=NUM_OUTPUTS)
    fill(job)

    async def submit(*_args, **_kwargs):
        """Do nothing: the job has its answer already."""

    monkeypatch.setattr(served.service, "new_job", lambda *_args, **_kwargs: job)
    monkeypatch.setattr(served.service, "submit", submit)
    fields = {"messages": [{"role": "user", "content": "x"}], "n": 64, "logprobs": True, "top_logprobs": 20}
    async with ticking() as turns:
        response = await served.client.post("/v1/chat/completions", json=fields)
    content = response.json()["choices"][63]["logprobs"]["content"]
    assert len(content) == NUM_TOKENS
    assert content[0] == {
        "token": "a",
        "logprob": -0.123456,
        "bytes": [97],
        "top_logprobs": [
            {"token": chr(97 + rank), "logprob": -0.5 - rank / 7, "bytes": [97 + rank]} for rank in range(NUM_LOGPROBS)
        ],
    }
    turns.check(len(response.content))


@contextlib.asynccontextmanager
async def unread(served, path, *, num):
    """Requests whose answers are not read."""
    writers = []
    for _ in range(num):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", httpx.URL(served.url).port))
        _, writer = await asyncio.open_connection(sock=sock)
        writer.transport.pause_reading()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        writers.append(writer)
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


@pytest.fixture
def num_slices(monkeypatch):
    """Return a list that gets the number of slices of every large value."""
    counts = []

    def counting(value):
        for number, slice in enumerate(json_slices(value), start=1):
            if number == 2:
                counts.append(1)
            if number > 1:
                counts[-1] += 1
            yield slice

    monkeypatch.setattr("splitfuse.server.http.json_writer.json_slices", counting)
    return counts


def large_job(served, *, num_outputs=NUM_OUTPUTS, num_tokens=60):
    """Add a kept job of some 3 MB; its outputs beyond NUM_OUTPUTS still run."""
    job = Job("large", model="m", num_outputs=num_outputs)
    job.attach(StoredRequest(has_logprobs=True))
    served.service.results.add(job)
    fill(job, num_tokens=num_tokens)


@pytest.mark.parametrize("path", ["/result/large", "/result/large/stream?starting_after=63"])
async def test_a_large_result_is_written_once_for_all_its_readers(served, path, num_slices):
    """The text is freed with its last reader. It is longer than the 4 MB that Linux buffers for a reader."""
    large_job(served, num_tokens=90)
    writer = served.service.json
    async with ticking() as turns, unread(served, path, num=60):
        whole = await served.client.get(path)
        num_bytes = writer.num_shared_bytes
    assert len(num_slices) == 1
    assert 1e6 < num_bytes <= len(whole.content)
    turns.check(num_bytes)
    async with asyncio.timeout(60):
        while writer.num_shared_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_large_response_is_written_once_for_all_its_readers(served, num_slices):
    large_job(served, num_outputs=1, num_tokens=1000)
    polls = await asyncio.gather(*(served.client.get("/v1/responses/large") for _ in range(3)))
    assert {len(poll.json()["output"][0]["content"][0]["logprobs"]) for poll in polls} == {1000}
    assert len(num_slices) == 1


async def test_a_large_result_of_a_running_job_is_written_as_it_is_taken(served, num_slices):
    large_job(served, num_outputs=NUM_OUTPUTS + 1)
    async with unread(served, "/result/large", num=5):
        whole = await served.client.get("/result/large")
        assert whole.json()["status"] == "running"
        assert max(num_slices) > 3e6 / SLICE_BYTES
        assert sorted(num_slices)[-2] < 1e6 / SLICE_BYTES, "so much the connections take into their buffers"
        assert served.service.json.num_shared_bytes == 0
    num_written = sum(num_slices)
    await served.client.get("/version")
    assert sum(num_slices) <= num_written + 5, "no more is written for readers that are gone"


async def test_large_values_are_written_in_turns(served):
    """Several that are written at once hold the loop no longer than one."""
    large_job(served, num_outputs=NUM_OUTPUTS + 1)
    async with ticking() as turns:
        polls = await asyncio.gather(*(served.client.get("/result/large") for _ in range(8)))
    turns.check(sum(len(poll.content) for poll in polls))


async def test_beyond_its_memory_nothing_is_shared(served, num_slices):
    large_job(served)
    served.service.json._max_shared_bytes = 0
    async with unread(served, "/result/large", num=2):
        whole = await served.client.get("/result/large")
        assert served.service.json.num_shared_bytes == 0
        assert len(num_slices) == 3
    assert whole.json()["status"] == "completed"


@pytest.mark.parametrize("kind", [CompletionResponseBuilder, ChatResponseBuilder])
def test_a_choice_is_the_same_whole_and_in_a_chunk(kind):
    items = [TokenLogprobs(97 + number, -0.5, ((98, -1.0), (300, -2.0))) for number in range(3)]
    head = Head(id="i", model="m", created=1, fingerprint="f")
    more = {"shown": Shown(), "answer": AnswerFormat(), "own_text": None}
    if kind is CompletionResponseBuilder:
        more = {"shown": Shown(), "echo": Echo(is_wanted=False, is_all=False), "prompt_text": str}
    builder = kind(head, lambda token_id: ShownToken(chr(token_id) * 2, 2 * chr(token_id).encode()), **more)
    output = CompletionOutput(0, "abc", [97, 98, 99], items, "length")
    delta = OutputDelta("r", 0, "abc", (97, 98, 99), tuple(items), "length")
    whole = json.loads(dumps(builder.choice(0, output, Job("r", model="m"))))["logprobs"]
    assert json.loads(builder.chunk(0, delta, text_offset=0, report={}))["choices"][0]["logprobs"] == whole
    if kind is CompletionResponseBuilder:
        assert whole["text_offset"] == [0, 2, 4]
        assert whole["tokens"] == ["aa", "bb", "cc"]


VALUES = [
    *({}, [], "é\ud83d", None, 1.5, {"a": {}, "b": [], "c": [{}], "d": [{"e": [1, [2], {"f": None}]}, {}]}),
    {"long": list(range(ITEMS_AT_ONCE * 3)), "text": "x" * 3 * SLICE_BYTES},
    [{"n": n, "items": [{"m": m} for m in range(100)]} for n in range(100)],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20])
def test_slices_are_what_dumps_writes(value):
    parts = list(json_slices(value))
    assert b"".join(parts).decode() == dumps(value)
    assert all(parts)


def test_an_iterator_is_a_list():
    for num in (0, 1, ITEMS_AT_ONCE, ITEMS_AT_ONCE + 1):
        expected = dumps({"a": list(range(num)), "b": 1})
        assert b"".join(json_slices({"a": iter(range(num)), "b": 1})).decode() == expected
        assert dumps({"a": iter(range(num)), "b": 1}) == expected
    with pytest.raises(TypeError, match="set has no JSON form"):
        dumps({1})


def rows():
    """Long lists in the items of a long list, like the states of all tokens of all inputs."""
    return ({"number": number, "rows": ({"text": "x" * 100} for _ in range(5000))} for number in range(10))


def test_slices_are_bounded():
    for items in (({"number": number, "text": "x" * 100} for number in range(50_000)), rows()):
        sizes = [len(part) for part in json_slices({"items": items})]
        assert len(sizes) > 50
        assert max(sizes) < SLICE_BYTES + ITEMS_AT_ONCE * 200
    assert json.loads(dumps({"items": rows()}))["items"][9] == {"number": 9, "rows": [{"text": "x" * 100}] * 5000}
