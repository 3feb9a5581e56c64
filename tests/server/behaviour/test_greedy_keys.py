"""A greedy key takes of everything that keys share as much as it gets. The next key still has its share, soon.

Each row of the table "Shares of keys" in server/docs/access.md has its greedy key here, or beside its folder. What is
counted is found by walking the sources.
"""

import ast
import asyncio
import json
import random
import re
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from splitfuse.engine.config import DEMO_FOLDER, EngineConfig, ResolvedConfig
from splitfuse.engine.core.outputs import OutputDelta
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.errors import QueueFullError
from splitfuse.engine.execution.models.registry import read_model_config
from splitfuse.engine.language.structured_output import grammar_maker
from splitfuse.engine.language.structured_output.compiler import GrammarCompiler
from splitfuse.engine.language.structured_output.params import StructuredOutputs
from splitfuse.engine.language.text.tokenizer import Tokenizer
from splitfuse.engine.language.workers.input_threads import LONG_CHARS, InputThreads
from splitfuse.engine.language.workers.shares import Turns, most_of, note_sharer
from splitfuse.engine.serving.queue_limits import QueueLimits
from splitfuse.server.apis.embeddings.work import _BackgroundTurns, _Run
from splitfuse.server.results.batches.part import BatchesPart
from splitfuse.server.settings import Settings

ROOT = Path(__file__).parents[3]
GREEDY, OTHER = "greedy-secret-key", "other-secret-key"
MIB = 2**20
LINE = {"custom_id": "0", "method": "POST", "url": "/generate", "body": {"prompt": "a", "max_tokens": 5}}


@pytest.fixture
def settings():
    return Settings(
        api_key=(GREEDY, OTHER), max_total_file_bytes=8 * MIB, max_file_bytes=2 * MIB, max_batch_requests=4,
        max_result_bytes_per_key=100_000, max_unfinished_per_key=20,
    )  # fmt: skip


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


async def upload(served, key, *, num_lines=1, padding=0):
    lines = [json.dumps({**LINE, "custom_id": str(number), "x": "y" * padding}) for number in range(num_lines)]
    files = {"file": ("f.jsonl", "\n".join(lines).encode())}
    return await served.client.post("/v1/files", files=files, data={"purpose": "batch"}, headers=bearer(key))


async def batch(served, key, file_id):
    body = {"input_file_id": file_id, "endpoint": "/generate", "completion_window": "24h"}
    return await served.client.post("/v1/batches", json=body, headers=bearer(key))


async def ended(served, key, batch_id):
    async with asyncio.timeout(60):
        while True:
            found = (await served.client.get(f"/v1/batches/{batch_id}", headers=bearer(key))).json()
            if found["status"] == "completed":
                return found
            await asyncio.sleep(0.01)


async def test_bytes_of_files(served):
    answers = [await upload(served, GREEDY, padding=MIB) for _ in range(9)]
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses[200] == 3, "half of 8 MiB is 4; each has a little more than one"
    assert "your files have" in answers[-1].text
    assert [(await upload(served, OTHER, padding=MIB)).status_code for _ in range(2)] == [200, 200]


async def test_output_of_batches_counts_as_files(served):
    """The files leave room for the output of some lines; the others' answers say why there is none."""
    for _ in range(3):
        assert (await upload(served, GREEDY, padding=MIB)).status_code == 200
    body = {"prompt": "a" * 400, "max_tokens": 100, "logprobs": 20}
    lines = "\n".join(json.dumps({**LINE, "custom_id": str(n), "body": body}) for n in range(100))
    sent = {"files": {"file": ("f", lines.encode())}, "data": {"purpose": "batch"}}
    file = (await served.client.post("/v1/files", **sent, headers=bearer(GREEDY))).json()
    made = (await batch(served, GREEDY, file["id"])).json()
    done = await ended(served, GREEDY, made["id"])
    assert done["request_counts"]["completed"] > 0
    assert done["request_counts"]["failed"] > 0
    errors = await served.client.get(f"/v1/files/{done['error_file_id']}/content", headers=bearer(GREEDY))
    assert "--max-total-file-bytes" in errors.text
    assert (await upload(served, OTHER, padding=MIB)).status_code == 200


async def test_bytes_of_uploads_that_arrive(served):
    """Slow uploads of the greedy key hold half; more of them are refused, and another key's is not."""
    is_held, has_sent = asyncio.Event(), asyncio.Semaphore(0)

    async def body():
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"y" * int(1.4 * MIB)
        has_sent.release()
        await is_held.wait()
        yield b"\r\n--x--\r\n"

    async def send():
        headers = {"content-type": "multipart/form-data; boundary=x", **bearer(GREEDY)}
        return await served.client.post("/v1/files", content=body(), headers=headers)

    held = [asyncio.create_task(send()) for _ in range(3)]
    arriving = served.service.part(BatchesPart).batches.files.arriving
    for _ in held:
        await has_sent.acquire()
    assert (await upload(served, OTHER, padding=MIB)).status_code == 200
    is_held.set()
    assert sorted(answer.status_code for answer in await asyncio.gather(*held))[-1] == 429
    assert arriving.held.total() == 0


async def test_unfinished_batches(served, monkeypatch):
    monkeypatch.setattr("splitfuse.server.results.batches.batches.MAX_UNFINISHED", 10)
    served.engine.hold()
    ids = {key: (await upload(served, key)).json()["id"] for key in (GREEDY, OTHER)}
    answers = [await batch(served, GREEDY, ids[GREEDY]) for _ in range(10)]
    assert Counter(answer.status_code for answer in answers) == {200: 5, 429: 5}
    assert (await batch(served, OTHER, ids[OTHER])).status_code == 200


async def test_lines_of_batches(served, monkeypatch):
    """The greedy key's lines never end; another key's batch does."""
    run = served.service.endpoints["/generate"]
    never = asyncio.Event()

    async def answer(service, fields, *, owner, defaults):
        if fields["max_tokens"] == 7:
            await never.wait()
        return await run(service, fields, owner=owner, defaults=defaults)

    monkeypatch.setitem(served.service.endpoints._own, "/generate", answer)
    lines = "\n".join(
        json.dumps({**LINE, "custom_id": str(n), "body": {"prompt": "a", "max_tokens": 7}}) for n in range(50)
    )
    sent = {"files": {"file": ("f", lines.encode())}, "data": {"purpose": "batch"}}
    file = (await served.client.post("/v1/files", **sent, headers=bearer(GREEDY))).json()
    for _ in range(3):
        assert (await batch(served, GREEDY, file["id"])).status_code == 200
    mine = (await batch(served, OTHER, (await upload(served, OTHER, num_lines=9)).json()["id"])).json()
    await ended(served, OTHER, mine["id"])


async def test_bytes_and_number_of_results(served):
    served.engine.hold()
    body = {"prompt": "a" * 100, "max_tokens": 300}
    taken = [await served.client.post("/generate", json=body, headers=bearer(GREEDY)) for _ in range(30)]
    assert {answer.status_code for answer in taken} == {202, 429}
    assert (await served.client.post("/generate", json=body, headers=bearer(OTHER))).status_code == 202


async def test_waiting_requests():
    """Embeddings' inputs wait in the same queue."""
    predictions = SimpleNamespace(predicted_s_until_ended=lambda num: 1.0)
    limits, waiting = QueueLimits(EngineConfig(max_queue_size=100)), Counter()

    def submit(key, num_new=1):
        note_sharer(key)
        limits.check_size(predictions, num_waiting=waiting.total(), num_new=num_new, num_own=waiting.__getitem__)
        waiting[key] += num_new

    for _ in range(50):
        submit("greedy")
    with pytest.raises(QueueFullError, match="50 requests of this key wait and its share of the queue holds 50"):
        submit("greedy")
    submit("other", 25)
    with pytest.raises(QueueFullError):
        submit("other")
    note_sharer("")
    with pytest.raises(QueueFullError, match="75 requests wait and the queue holds 100"):
        limits.check_size(predictions, num_waiting=75, num_new=26, num_own=waiting.__getitem__)


async def test_characters_of_prompts():
    threads, gate, order = InputThreads(max_length=10 * LONG_CHARS), threading.Event(), []

    async def prompt(key):
        note_sharer(key)

        def work():
            gate.wait()
            order.append(key)

        with threads.hold(num_requests=1, length=LONG_CHARS):
            await threads.run(work, length=LONG_CHARS + 1)

    greedy = [asyncio.create_task(prompt("greedy")) for _ in range(20)]
    await asyncio.sleep(0)
    other = asyncio.create_task(prompt("other"))
    await asyncio.sleep(0)
    gate.set()
    await other
    ends = await asyncio.gather(*greedy, return_exceptions=True)
    assert Counter(type(end) for end in ends) == {type(None): 5, QueueFullError: 15}
    assert order.index("other") == 1, "behind the prompt that was being read"
    assert threads.num_requests == threads.length == 0
    threads.stop()


async def test_grammars(monkeypatch):
    """The order of trials has a test beside `sandbox_worker`."""
    compiler = GrammarCompiler(Tokenizer(DEMO_FOLDER), read_model_config(DEMO_FOLDER))
    gate = threading.Event()
    make = grammar_maker.GrammarMaker.make

    def held(self, outputs, *, owner=""):
        gate.wait()
        return make(self, outputs, owner=owner)

    monkeypatch.setattr(grammar_maker.GrammarMaker, "make", held)
    grammars = [StructuredOutputs(regex=f"[a-z]{{{num}}}") for num in range(1, 12)]
    monkeypatch.setattr(compiler._compiling, "limit", 10)
    note_sharer("greedy")
    taken = [compiler.compile(grammar) for grammar in grammars[:5]]
    with pytest.raises(QueueFullError, match="5 grammars of this key"):
        compiler.compile(grammars[5])
    note_sharer("other")
    taken += [compiler.compile(grammar) for grammar in grammars[6:8]]
    gate.set()
    assert len({grammar.result(60) for grammar in taken}) == 7
    assert compiler._compiling.held.total() == 0


async def test_embeddings_of_many_inputs():
    """A greedy key has three steps of inputs in the engine. The next key's come when the first of them have ended."""
    submitted, sinks = [], []

    async def submit(token_ids, params, sink, *, tenant):
        submitted.append(tenant)
        sinks.append(lambda: sink(OutputDelta("", 0, "", (), finish_reason="stop")))
        return SimpleNamespace(request_id=str(len(sinks)))

    engine = SimpleNamespace(config=ResolvedConfig.of(EngineConfig(), device="cpu"), submit=submit, abort=print)
    turns = _BackgroundTurns(engine)
    engine.state = lambda kind: turns
    prompts = [SimpleNamespace(token_ids=[1] * 100, params=SamplingParams()) for _ in range(100)]
    service = SimpleNamespace(engine=engine)
    keys = ["greedy"] * 20 + ["other"]
    runs = [asyncio.create_task(_Run(service, prompts, tenant=key, is_background=True).finish()) for key in keys]
    await settled()
    assert submitted == ["greedy"] * 15
    for end in sinks[:5]:
        end()
    await settled()
    assert submitted == ["greedy"] * 15 + ["other"] * 5
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    assert turns._held.total() == 0


async def settled():
    for _ in range(50):
        await asyncio.sleep(0)


async def test_turns_shut_nobody_out():
    """Greedy keys wait for places all the time; a key that comes later gets one before they have had a round."""
    turns, rng = Turns(8, is_divided=True), random.Random(3)
    running: Counter[str] = Counter()
    had: Counter[str] = Counter()

    async def worker(key, rounds):
        for _ in range(rounds):
            await turns.take(key)
            running[key] += 1
            had[key] += 1
            assert running.total() <= 8
            assert running[key] < 8
            for _ in range(rng.randint(1, 5)):
                await asyncio.sleep(0)
            running[key] -= 1
            turns.leave(key)

    greedy = [asyncio.create_task(worker(key, 200)) for key in "abc" for _ in range(20)]
    cancelled = [asyncio.create_task(worker("d", 200)) for _ in range(20)]
    await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    for task in cancelled[5:]:
        task.cancel()
    running["d"] = 0 if all(task.done() for task in cancelled) else running["d"]
    before = had.total()
    await worker("late", 1)
    assert had.total() - before < 8 * 4
    for task in (*greedy, *cancelled):
        task.cancel()
    await asyncio.gather(*greedy, *cancelled, return_exceptions=True)


def test_n_greedy_keys_leave_a_share():
    held = dict.fromkeys("abcd", 0)
    for _ in range(1000):
        for key in held:
            most = most_of(1000, num_own=held[key], num_all=sum(held.values()), is_divided=True)
            held[key] += held[key] < most
    assert all(190 <= num <= 210 for num in held.values()), held
    assert most_of(10, num_own=3, num_all=9, is_divided=False) == 10


# Rows of "Shares of keys" with their greedy keys: a test here, or the file of another one.
GREEDY_KEYS = {
    "bytes of files": test_bytes_of_files,
    "unfinished batches": test_unfinished_batches,
    "lines of batches that run": test_lines_of_batches,
    "adapters in memory": "extras/lora/test_routes.py",
    "bytes of results": test_bytes_and_number_of_results,
    "unfinished results": test_bytes_and_number_of_results,
    "bytes of uploads that arrive": test_bytes_of_uploads_that_arrive,
    "waiting requests": test_waiting_requests,
    "characters of prompts": test_characters_of_prompts,
    "embeddings of many inputs": test_embeddings_of_many_inputs,
    "grammars": test_grammars,
    "requests before several models": "extras/router/test_router.py",
    "viewers of steps": "extras/page/test_step_broadcast.py",
}
OWN = "of one call, or of the engine alone: no key waits for another's"
READS = "a thread that reads for any request; each reading is short and bounded"
ALL = "all of them together are bounded by the other rows"
# Functions that count for all keys, refuse, or make places for which requests wait: their row, or why no key is greedy.
COUNTED = {
    "engine/extras/lora/adapters.py:Adapters._may_hold": "adapters in memory",
    "engine/extras/lora/adapters.py:Adapters.in_thread": READS,
    "engine/extras/disk_cache/disk_cache.py:DiskCache.__init__": READS,
    "engine/extras/disk_cache/entry_reader.py:EntryReader.__init__": READS,
    "engine/extras/parallel/rank_processes.py:_State.__init__": OWN,
    "engine/extras/weight_updates/control.py:EngineControl._prepared": OWN,
    "engine/execution/models/decoder.py:Decoder._loaded": OWN,
    "engine/language/structured_output/compiler.py:GrammarCompiler.__init__": "grammars",
    "engine/language/structured_output/compiler.py:GrammarCompiler.compile": "grammars",
    "engine/language/structured_output/grammar_maker.py:Sandbox.run": "grammars",
    "engine/language/structured_output/grammar_maker.py:GrammarMaker.__init__": "grammars",
    "engine/language/structured_output/grammar_maker.py:GrammarMaker.make": "grammars",
    "engine/language/structured_output/schemas/schema_walker.py:SchemaWalker.__init__": "grammars",
    "engine/language/workers/input_threads.py:InputThreads.__init__": "characters of prompts",
    "engine/language/workers/input_threads.py:InputThreads.hold": "characters of prompts",
    "engine/serving/async_engine.py:AsyncEngine.__init__": OWN,
    "engine/serving/builder.py:load": OWN,
    "engine/serving/llm.py:LLM.run": OWN,
    "engine/serving/queue_limits.py:QueueLimits.check_size": "waiting requests",
    "engine/serving/queue_limits.py:_queue_full": "waiting requests",
    "engine/serving/wait_prediction.py:WaitPrediction.check_goal": "the request's own goal",
    "server/apis/embeddings/work.py:_Run.__init__": "embeddings of many inputs",
    "server/extras/page/step_broadcast.py:StepBroadcast.chunks": "viewers of steps",
    "server/extras/router/router.py:Router.__init__": "requests before several models",
    "server/extras/router/router.py:Router._check": "requests before several models",
    "server/extras/router/supervisor.py:_serve": "turns of models, not of keys",
    "server/jobs/job_index.py:JobIndex.add": "unfinished results",
    "server/jobs/result_store.py:ResultStore.check_quota": "bytes of results",
    "server/results/batches/batches.py:Batches.__init__": "lines of batches that run",
    "server/results/batches/batches.py:Batches.create": "unfinished batches",
    "server/results/batches/files.py:Files.__init__": "bytes of uploads that arrive",
    "server/results/batches/files.py:Files.add": "the size of one file",
    "server/results/batches/files.py:Files._check_of.check": "bytes of files",
    "server/results/batches/form.py:read_form.counted": "bytes of uploads that arrive",
    "server/results/durable/memory_store.py:MemoryStore.__init__": ALL,
}
REFUSE = {"QueueFullError", "FileTooLargeError"}
HOLD = {"most_of", "Shares", "Turns", "Semaphore", "BoundedSemaphore", "ThreadPoolExecutor"}


def counted():
    """Yield the functions that refuse because something is full, or that make places for which others wait."""
    trees = [
        (str(path.relative_to(ROOT)), ast.parse(path.read_text()))
        for package in ("engine", "server")
        for path in (ROOT / package).rglob("*.py")
    ]
    classes = [node for _, tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = REFUSE | HOLD
    while more := {node.name for node in classes if names & {*map(ast.unparse, node.bases)}} - names:
        names |= more

    def visit(node, place):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            place = f"{place}{':' if place.endswith('.py') else '.'}{node.name}"
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names:
            yield place
        for child in ast.iter_child_nodes(node):
            yield from visit(child, place)

    for path, tree in trees:
        if path != "engine/language/workers/shares.py":
            yield from visit(tree, path)


def test_whatever_is_counted_has_its_row():
    found = set(counted())
    assert found - COUNTED.keys() == set(), "something that keys share: how much of it does a greedy key leave?"
    assert COUNTED.keys() - found == set(), "a row of nothing"


def test_each_row_has_its_greedy_key():
    text = (ROOT / "server/docs/access.md").read_text()
    rows = re.findall(r"^\| ([\w, ']+) \| [`\d]", text.partition("## Shares of keys")[2].partition("\n## ")[0], re.M)
    assert rows == [*GREEDY_KEYS]
    assert GREEDY_KEYS.keys() - {*COUNTED.values()} == set()
    for file in GREEDY_KEYS.values():
        assert callable(file) or "greedy" in (ROOT / "tests/server" / file).read_text()
