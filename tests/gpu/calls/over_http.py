"""What a user of a running server sees: one check, its figures in one line each, also appended to $OUT/figures.txt.

    python3 tests/gpu/calls/over_http.py URL answers [--save FILE] [--expect FILE]
    python3 tests/gpu/calls/over_http.py URL crowds | gaps | adapters NAME SAME OTHER | kept [--of FILE]

`answers`: questions on /v1/chat/completions and /generate, whole and streamed, a schema, /result/<id>; how far they
are a CPU's or those of `--expect`. `crowds`: answers beside two different loads, token by token. `gaps`: of
streams beside long prompts. `adapters`: one without effect, one with. `kept`: a result before and after a crash.
"""

import argparse
import asyncio
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, takewhile
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / ".import"))
# With the answers of SmolLM2-135M-Instruct in Q4_0 on a CPU, in bfloat16 and float16.
QUESTIONS = {
    "What is the capital of France?": (
        "The capital of France is Paris, capital of the French language, culture, and culture."
    ),
    "What do bees make?": (
        "Bees make a variety of products, but their most notable product is honey. Bees collect nectar from flowers, "
        "which they store in their honeycomb, a specialized structure within their body. The process of gathering "
        "nectar and storing it in their honey"
    ),
    "List the days of the week.": (
        "The days of the week are:\n\n1. Monday\n2. Tuesday\n3. Wednesday\n4. Thursday\n5. Friday\n6. Saturday\n"
        "7. Sunday\n8. Monday\n9. Tuesday\n10. Wednesday"
    ),
}
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "country": {"enum": ["France", "Spain", "Italy"]}},
    "required": ["name", "country"],
    "additionalProperties": False,
}


def figure(text: str) -> None:
    print(text, flush=True)
    with (Path(os.environ.get("OUT") or ".") / "figures.txt").open("a") as file:
        file.write(text + "\n")


class Server:
    """Server under check."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._num_salts = 0

    def get(self, path: str, body: Any = None, **headers: str) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())

    def json(self, path: str, body: Any = None, **headers: str) -> Any:
        return json.loads(self.get(path, body, **headers))

    def events(self, path: str, body: Any) -> Iterator[Any]:
        for line in self.get(path, body).decode().splitlines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))

    def chat(self, question: str, **fields: Any) -> dict[str, Any]:
        """Return the body of a greedy chat. Its own salt: a prefix that is found would be summed in another order."""
        self._num_salts += 1
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 48}
        return body | {"cache_salt": f"{os.getpid()}.{self._num_salts}"} | fields

    def prompt(self, question: str, **fields: Any) -> dict[str, Any]:
        """Return the body of the same request for /generate."""
        chat = self.chat(question, **fields)
        messages = {"messages": chat.pop("messages")}
        return {"prompt": self.json("/tokenize", messages)["tokens"], **chat}

    def answer(self, question: str, **fields: Any) -> str:
        choice = self.json("/v1/chat/completions", self.chat(question, **fields))["choices"][0]
        return str(choice["message"]["content"])

    def result(self, question: str, **fields: Any) -> Any:
        return self.json("/generate", self.prompt(question, **fields), prefer="wait=30")


def answers(server: Server, args: argparse.Namespace) -> bool:
    texts, wrong = [], []
    for question in QUESTIONS:
        whole = server.answer(question)
        chunks = server.events("/v1/chat/completions", server.chat(question, stream=True))
        streamed = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        native = server.result(question)
        events = list(server.events("/generate", server.prompt(question, stream=True)))
        pieces = "".join(event["text"] for event in events if "index" in event)
        kept = server.json(f"/result/{native['seq_id']}")
        found = {
            "chat stream": streamed,
            "/generate": native["text"],
            "/generate stream": pieces,
            "/result": kept["text"],
        }
        wrong += [f"{name} differs for {question!r}: {text!r}" for name, text in found.items() if text != whole]
        texts.append(whole)
        figure(f"  {question} -> {whole!r}")
    figure(f"five ways to each answer: {'; '.join(wrong) or 'equal'}")
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    city = json.loads(server.answer("Describe the city of Paris as JSON.", response_format=form))
    fits = set(city) == {"name", "country"} and city["country"] in CITY["properties"]["country"]["enum"]  # type: ignore[index]
    figure(f"schema: {city} {'fits' if fits else 'DOES NOT FIT'}")
    if args.save:
        args.save.write_text(json.dumps(texts))
    expected = json.loads(args.expect.read_text()) if args.expect else list(QUESTIONS.values())
    shares = [len(_shared(text, other)) / max(1, len(other)) for text, other in zip(texts, expected, strict=True)]
    where = "with plain steps" if args.expect else "on a CPU"
    num_equal = sum(text == other for text, other in zip(texts, expected, strict=True))
    figure(f"as {where}: {num_equal} of {len(texts)} texts; equal beginnings {[f'{share:.0%}' for share in shares]}")
    return fits and not wrong


def _shared(text: str, other: str) -> str:
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))


def crowds(server: Server, args: argparse.Namespace) -> bool:
    """Return True if the answers, alone and beside two loads, are equal token by token."""

    def ask(load: Sequence[int]) -> list[list[int]]:
        random = Random(len(load))
        beside = [{"prompt": [random.randrange(100, 250) for _ in range(n)], "max_tokens": 40} for n in load]
        with ThreadPoolExecutor(len(load) + len(QUESTIONS)) as threads:
            others = [threads.submit(server.json, "/generate", body, prefer="wait=60") for body in beside]
            asked = [threads.submit(server.result, question) for question in QUESTIONS]
            assert all(other.result()["status"] == "completed" for other in others)
            return [one.result()["token_ids"] for one in asked]

    alone = [server.result(question)["token_ids"] for question in QUESTIONS]
    small, large = ([5, 31], [9, 40]) if args.dry else ([7 * n for n in range(1, 13)], [33 * n for n in range(1, 49)])
    equal = [sum(a == b for a, b in zip(alone, ask(load), strict=True)) for load in (small, large)]
    figure(f"equal token by token beside {len(small)} and {len(large)} others: {equal} of {len(QUESTIONS)}")
    return equal == [len(QUESTIONS)] * 2


def gaps(server: Server, args: argparse.Namespace) -> bool:
    return asyncio.run(_gaps(server, args))


async def _gaps(server: Server, args: argparse.Namespace) -> bool:
    """Measure gaps of streams while prompts arrive one after another, each with some time for itself."""
    import httpx

    from splitfuse.client.bench.openai_stream import Target, measure
    from splitfuse.client.bench.workload import LoadRequest

    num_streams, stream_len, long_len, pause = (4, 200, 100, 0.2) if args.dry else (32, 1000, 8192, 0.7)
    name = server.json("/v1/models")["data"][0]["id"]
    random, target = Random(5), Target("/v1/completions", name, ignore_eos=True)

    async def send(prompt_len: int, output_len: int) -> "tuple[float, Any]":
        prompt = [random.randrange(100, 1000) for _ in range(prompt_len)]
        start = time.perf_counter()
        return start, await measure(http, target, LoadRequest(prompt, prompt_len, output_len))

    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=httpx.Limits()) as http:
        await send(16, 2)
        streams = [asyncio.create_task(send(16 if args.dry else 128, stream_len)) for _ in range(num_streams)]
        await asyncio.sleep(pause)
        quiet = time.perf_counter()  # the prompts of the streams themselves are behind us
        await asyncio.sleep(pause)
        longs = []
        for _ in range(1 if args.dry else 3):
            longs.append(await send(long_len, 2))
            await asyncio.sleep(pause)
        done = await asyncio.gather(*streams)
    errors = [outcome.error for _, outcome in [*done, *longs] if outcome.error]
    if errors:
        figure(f"gaps: {len(errors)} requests failed: {errors[0]}")
        return False
    found = []  # end and length of each gap
    for start, outcome in done:
        ends = list(accumulate(outcome.itls, initial=start + outcome.ttft))[1:]
        found += list(zip(ends, outcome.itls, strict=True))
    _say_gaps(f"{num_streams} streams before", [gap for end, gap in found if quiet < end - gap and end < longs[0][0]])
    for start, outcome in longs:
        beside = [gap for end, gap in found if end > start and end - gap < start + outcome.ttft]
        _say_gaps(f"beside a prompt of {long_len}, first token after {1e3 * outcome.ttft:.0f} ms", beside)
    return True


def _say_gaps(name: str, values: Sequence[float]) -> None:
    values = sorted(values)
    if values:
        p50, p99 = (1e3 * values[min(len(values) - 1, len(values) * share // 100)] for share in (50, 99))
        figure(f"{name}: gaps P50 {p50:.1f}, P99 {p99:.1f}, longest {1e3 * values[-1]:.1f} ms ({len(values)})")
    else:
        figure(f"{name}: no gaps; the streams had ended")


def adapters(server: Server, args: argparse.Namespace) -> bool:
    """Return True if one adapter changes no text, and the other one does, all three in one batch."""
    with ThreadPoolExecutor(3 * len(QUESTIONS)) as threads:
        asked = [[threads.submit(server.answer, q, model=name) for q in QUESTIONS] for name in args.names]
        base, same, other = ([one.result() for one in column] for column in asked)
    changed = sum(a != b for a, b in zip(base, other, strict=True))
    figure(f"adapters: without effect {'equal' if same == base else 'DIFFERS'}, with effect {changed} texts changed")
    figure(f"  {next(iter(QUESTIONS))} -> {other[0]!r}")
    return same == base and changed > 0


def kept(server: Server, args: argparse.Namespace) -> bool:
    """Make a result, or see that it is still there."""
    if not args.of.exists():
        args.of.write_text(json.dumps(server.result(list(QUESTIONS)[1])))
        return True
    before = json.loads(args.of.read_text())
    after = server.json(f"/result/{before['seq_id']}")
    figure(f"a result after kill -9 and a restart: {'the same' if after['text'] == before['text'] else 'ANOTHER'}")
    return bool(after["text"] == before["text"] and after["status"] == "completed")


CHECKS = {function.__name__: function for function in (answers, crowds, gaps, adapters, kept)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("names", nargs="*", help="of the model and two adapters")
    parser.add_argument("--save", type=Path, help="file for the texts")
    parser.add_argument("--expect", type=Path, help="file with the texts of another server")
    parser.add_argument("--of", type=Path, help="file with the kept result")
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    return 0 if CHECKS[args.check](Server(args.url), args) else 1


if __name__ == "__main__":
    raise SystemExit(main())
