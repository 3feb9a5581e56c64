"""`make turns`: several models on one port, few of them in memory, while model processes and the parent are killed.

Eight clients with three keys ask in five ways. No request may be lost, no kept result come twice, every answer must
equal an undisturbed single server's to the bit, and no wait may exceed the bound that `several_models.md` states.
Then a greedy crowd of the first model shares the port with a client of each other one.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from served import Served
from turns.asker import WAYS, Asker, Question
from turns.parent import Parent
from turns.watch import Watch

from splitfuse.engine.config.named_models import DEMO_FOLDER

KEYS = ("the-first-of-three", "the-second-of-three", "the-third-of-three")
NUM_CLIENTS = 8
NUM_BODIES = 4
NUM_GREEDY = 6
NUM_BESIDE = 3  # requests for each other model beside the greedy ones
PARENT_SHARE = 0.3  # share of the kills that the parent gets
WEIGHTS = (4, 4, 4, 4, 1)  # how often each way is asked
ENGINE = ("--num-threads", "1", "--num-kv-blocks", "2048")
MAX_COMPUTED = 300  # tokens of a second visit
MARGIN_S = 2.0  # of a bound: what this program itself, and the start of a parent, take


def main() -> int:
    """Run the campaign. Returns 1 if anything was lost, doubled, changed or late."""
    parser = argparse.ArgumentParser(prog="turns", description=__doc__)
    parser.add_argument("--models", nargs="+", default=[], help="instead of three of demo size")
    parser.add_argument("--models-max", type=int, default=1)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--chat-tokens", type=int, default=20_000, help="of a chat that is visited twice; 0: none")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--turn", type=float, default=5.0, help="--model-turn")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="turns-") as folder:
        models = options.models or demo_models(Path(folder))
        faults = asyncio.run(Campaign(models, options, Path(folder)).run())
    print("\n".join(faults) or "nothing wrong")
    return 1 if faults else 0


def demo_models(folder: Path) -> list[str]:
    """Return the demo, its smaller sibling with a tokenizer, and a copy of the demo with room for long chats."""
    shutil.copytree(DEMO_FOLDER / "draft", folder / "demo-draft")
    shutil.copy(DEMO_FOLDER / "tokenizer.json", folder / "demo-draft")
    shutil.copytree(DEMO_FOLDER, folder / "demo-copy")
    path = folder / "demo-copy" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 32768}))
    return ["demo", str(folder / "demo-draft"), str(folder / "demo-copy")]


class Campaign:
    """Campaign of clients, kills, and a judge that knows every answer."""

    def __init__(self, models: Sequence[str], options: argparse.Namespace, folder: Path) -> None:
        self._models = models
        self._options = options
        self._folder = folder
        self._draw = random.Random(options.seed)
        self._expected: dict[Question, Any] = {}
        self._names: list[str] = []
        self._faults: list[str] = []
        self._counts: Counter[str] = Counter()
        self._kept: dict[str, set[str]] = {key: set() for key in KEYS}
        self._kill_times: list[float] = []
        self._numbers = iter(range(10**9))
        self._waits: list[tuple[float, float, str]] = []  # wait, bound, whose

    async def run(self) -> list[str]:
        """Run all parts. Returns the faults found."""
        for model in self._models:
            await self._undisturbed(model)
        (self._folder / "keys").write_text("\n".join(KEYS))
        limits = ("--models-max", str(self._options.models_max), "--model-turn", str(self._options.turn))
        kept = ("--results", str(self._folder / "kept"), "--api-key-file", str(self._folder / "keys"))
        parent = await asyncio.to_thread(Parent, (*self._models, *limits, *kept, *ENGINE), self._folder)
        try:
            async with self._client(parent.url, KEYS[0]) as client:
                watch = Watch(client, turn_s=self._options.turn)
                watching = asyncio.create_task(watch.run())
                await self._disturbed(parent, watch)
                self._tell(watch, f"{len(self._kill_times)} kills, the parent {parent.rss_mb:.0f} MiB")
                await self._check_kept(parent)
                await self._beside_greedy(parent, watch)
                if self._options.chat_tokens:
                    await self._visit_twice(client)
                watching.cancel()
        except BaseException:
            print(parent.log[-5000:], file=sys.stderr)
            raise
        await asyncio.to_thread(parent.close)
        return self._faults + parent.faults

    @contextlib.asynccontextmanager
    async def _client(self, url: str, key: str) -> AsyncIterator[httpx.AsyncClient]:
        headers, limits = {"Authorization": f"Bearer {key}"}, httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=600, trust_env=False, limits=limits
        ) as client:
            yield client

    async def _undisturbed(self, model: str) -> None:
        """Note the answers of a server of this model alone."""
        served = await asyncio.to_thread(lambda: Served(model, *ENGINE).until_ready())
        try:
            async with self._client(served.url, KEYS[0]) as client:
                name = (await client.get("/v1/models")).json()["data"][0]["id"]
                self._names.append(name)
                for number in range(NUM_BODIES):
                    for way in ("accepted", "chat", "plain"):
                        with contextlib.suppress(RuntimeError):  # 400: a model without a template
                            asker = self._asker(client, Question(way, name, number))
                            self._expected[asker.question] = await asker.run()
        finally:
            served.__exit__()

    def _blame(self, *faults: str) -> None:
        self._faults += faults
        for fault in faults:
            print(f"FAULT {fault}", flush=True)

    def _answer_to(self, question: Question) -> Any:
        way = {"durable": "accepted", "streamed": "plain", "batch": "plain"}.get(question.way, question.way)
        return self._expected.get(question._replace(way=way))

    def _asker(self, client: httpx.AsyncClient, question: Question) -> Asker:
        return Asker(client, question, number=next(self._numbers), num_tokens=self._options.tokens)

    async def _disturbed(self, parent: Parent, watch: Watch) -> None:
        """Ask and kill, until all is answered and the kills are done."""
        killing = asyncio.create_task(self._kill(parent))
        async with asyncio.TaskGroup() as group:
            for number in range(NUM_CLIENTS):
                group.create_task(self._ask_on(parent.url, KEYS[number % len(KEYS)], watch, killing))
        await killing

    async def _ask_on(self, url: str, key: str, watch: Watch, killing: "asyncio.Task[None]") -> None:
        draw = random.Random(self._draw.random())
        async with self._client(url, key) as client:
            while self._counts["begun"] < self._options.requests or not killing.done():
                self._counts["begun"] += 1
                question = Question(
                    draw.choices(WAYS, WEIGHTS)[0], draw.choice(self._names), draw.randrange(NUM_BODIES)
                )
                if self._answer_to(question) is None:
                    question = question._replace(way="plain")
                await self._ask(client, question, key, watch)

    async def _ask(self, client: httpx.AsyncClient, question: Question, key: str, watch: Watch) -> None:
        asker = self._asker(client, question)
        answer = await asker.run()
        self._counts[question.way] += 1
        self._counts["answered"] += 1
        self._counts.update(asker.counts)
        if self._counts["answered"] % 25 == 0:
            print(f"{dict(self._counts)}, {len(self._kill_times)} kills", flush=True)
        self._kept[key].update(asker.ids)
        num_kills = sum(asker.begin_s - MARGIN_S < at < asker.end_s for at in self._kill_times)
        self._counts["over a kill"] += num_kills > 0
        name = f"{question} over {num_kills} kills"
        self._blame(*(f"{name}: {fault}" for fault in asker.faults))
        if answer != self._answer_to(question):
            self._blame(f"{name}: {str(answer)[:300]} instead of {str(self._answer_to(question))[:300]}")
        if not num_kills:
            watch.work_s = max(watch.work_s, asker.end_s - asker.first_s if question.way == "streamed" else 0.0)
        ahead = len(self._names) + num_kills
        self._waits.append((asker.first_s - asker.begin_s, ahead, name))

    async def _kill(self, parent: Parent) -> None:
        """Kill at random moments, evenly over the requests."""
        num_kills, num_requests = self._options.kills, self._options.requests
        for number in range(num_kills):
            threshold = (number + self._draw.random()) * num_requests / num_kills
            while self._counts["answered"] < threshold * 0.9:  # noqa: ASYNC110 - processes set no event
                await asyncio.sleep(0.05)
            await asyncio.sleep(self._draw.expovariate(1.0))
            models = parent.models
            self._kill_times.append(time.monotonic())
            if not models or self._draw.random() < PARENT_SHARE:
                self._counts["parents killed"] += 1
                await asyncio.to_thread(parent.kill)
            else:
                self._counts["models killed"] += 1
                parent.kill_model(self._draw.choice(models))

    def _tell(self, watch: Watch, title: str) -> None:
        """Print the longest wait beside its bound, and count those that are too long."""
        slot_s = watch.slot_s()
        rows = [(wait_s, ahead * slot_s + MARGIN_S, name) for wait_s, ahead, name in self._waits]
        self._blame(
            *(f"{name} waited {wait:.1f} s, promised {bound:.1f}" for wait, bound, name in rows if wait > bound)
        )
        wait_s, bound_s, name = max(rows)
        print(f"{title}: {dict(self._counts)}", flush=True)
        loads = f"{watch.num_loads} loads, the longest {watch.longest['loading']:.1f} s"
        print(f"{loads}; longest wait {wait_s:.1f} s of {bound_s:.1f} ({name})", flush=True)
        self._waits.clear()
        self._counts.clear()

    async def _check_kept(self, parent: Parent) -> None:
        """Compare what the server keeps with what its clients know: nothing lost, nothing twice."""
        num_kept = 0
        for key, known in self._kept.items():
            async with self._client(parent.url, key) as client:
                found = [row for name in self._names for row in await _rows(client, name)]
            num_kept += len(found)
            self._blame(*(f"{name} is kept twice" for name, count in Counter(found).items() if count > 1))
            self._blame(*(f"{name} is lost" for name in known - {*found}))
            self._blame(*(f"{name} is nobody's: a request ran twice" for name in {*found} - known))
        print(f"{num_kept} results and batches are kept, each once", flush=True)

    async def _beside_greedy(self, parent: Parent, watch: Watch) -> None:
        """Let a crowd ask the first model without a pause, and a client of another key the others."""
        greedy_name, *others = self._names
        is_over = asyncio.Event()

        async def be_greedy(number: int) -> None:
            async with self._client(parent.url, KEYS[0]) as client:
                while not is_over.is_set():
                    question = Question("plain", greedy_name, number % NUM_BODIES)
                    assert await self._asker(client, question).run() == self._answer_to(question)
                    self._counts["greedy answers"] += 1

        crowd = [asyncio.create_task(be_greedy(number)) for number in range(NUM_GREEDY)]
        async with self._client(parent.url, KEYS[1]) as client:
            for number in range(NUM_BESIDE):
                for name in others:
                    await self._ask(client, Question("streamed", name, number), KEYS[1], watch)
        is_over.set()
        await asyncio.gather(*crowd)
        self._tell(watch, "beside a greedy crowd")

    async def _visit_twice(self, client: httpx.AsyncClient) -> None:
        """Begin a long chat, let every other model have its turn, and go on with the chat."""
        days = (
            f"Day {number}: it rained in the little town by the sea. "
            for number in range(self._options.chat_tokens // 16)
        )
        messages = [{"role": "user", "content": "".join(days)}]
        for is_second in (False, True):
            body = {"model": self._names[-1], "messages": messages, "max_tokens": 16, "temperature": 0}
            answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
            for other in () if is_second else self._names[:-1]:
                await self._asker(client, Question("plain", other, 0)).run()
        usage = answer["usage"]
        num_computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        print(f"second visit to a chat of {usage['prompt_tokens']} tokens: {num_computed} computed", flush=True)
        self._blame(*[f"a second visit computes {num_computed} tokens"] * (num_computed >= MAX_COMPUTED))


async def _rows(client: httpx.AsyncClient, name: str) -> list[str]:
    """Return the ids of a model's kept results and batches."""
    found: list[str] = []
    for path, field in (("/results", "seq_id"), ("/v1/batches", "id")):
        after = ""
        while True:
            page = (await client.get(f"{path}?model={name}&limit=100{after}")).json()
            found += [row[field] for row in page["data"]]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
    return found


if __name__ == "__main__":
    sys.exit(main())
