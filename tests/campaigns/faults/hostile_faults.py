"""Hostile files and a machine without room. Each fault has a folder of its own, and nothing outside it is touched."""

import json
import os
import random
import resource
import shutil
import sqlite3
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from faults.overload_faults import Fault, Seen
from served import SERVE, Served

from splitfuse.engine.config import DEMO_FOLDER

_BODY = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
_ONE_THREAD = ("--num-threads", "1")
_CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
MOST_S, READY_S, MOST_MB = 15.0, 1.0, 200.0  # of an answer, of /ready meanwhile, and of memory
TEMPLATES = (
    "{% for i in range(1000000000) %}a{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10000000000 }}",
    "{% set x = 'a' * 1000000 %}{% for i in range(10000) %}{{ x }}{% endfor %}",
    "{{ range(1000000000) | list | length }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__ }}",
    '{% include "/etc/hostname" %}',
    "{{ messages[0].content.format(messages[0].content.__init__) }}{{ 10 ** 10 ** 8 }}",
)
PATTERNS = ("(a+)+$", "(a|a)*b", "(.*a){25}", "a{1,1000}{1,1000}{1,1000}", "(?=(a+))\\1+b")


def with_model(folder: Path, **changed: Callable[[bytes], bytes]) -> Path:
    """Copy the demo model with some files changed, by the names of their stems."""
    shutil.copytree(DEMO_FOLDER, folder)
    for stem, change in changed.items():
        (path,) = folder.glob(f"{stem}.json")
        path.write_bytes(change(path.read_bytes()))
    return folder


def answered(served: Served, asked: Callable[[httpx.Client], httpx.Response]) -> str:
    """Ask; return what is wrong with the answer, its time, /ready and memory meanwhile; "" if nothing is."""
    before, begin, seen = served.usage().rss_mb, time.monotonic(), list[str]()
    with served.client(timeout=3 * MOST_S) as client:
        status = asked(client).status_code
        if status == 500:
            seen.append("500")
        if (seconds := time.monotonic() - begin) > MOST_S:
            seen.append(f"{seconds:.0f} s")
        begin = time.monotonic()
        client.get("/ready").raise_for_status()
        if (seconds := time.monotonic() - begin) > READY_S:
            seen.append(f"/ready {seconds:.1f} s later")
        client.post("/generate", json=_BODY).raise_for_status()
    if (grown := served.usage().rss_mb - before) > MOST_MB:
        seen.append(f"{grown:.0f} MB more")
    return ", ".join(seen)


def ended(served: Served) -> str:
    """Return what is wrong with the end of a server that could not start."""
    code, log = served.wait(30), served.log.strip()
    if code is None:
        return "hangs"
    return "" if code == 2 and len(log.splitlines()) <= 3 else f"exit {code}: {log[-300:]}"


def start(*args: str, program: tuple[str, ...] = SERVE) -> str:
    """Start a server that may refuse its files. Return what is wrong with its end, or with an answer."""
    served = Served(*_ONE_THREAD, *args, program=program)
    try:
        served.until_ready(seconds=60)
    except RuntimeError:
        return ended(served)
    with served:
        return answered(served, lambda client: client.post("/generate", json=_BODY))


def all_of(cases: dict[str, Callable[[], str]]) -> Seen:
    """See all cases; those that are wrong are named."""
    wrong = {name: told for name, case in cases.items() if (told := case())}
    return Seen(
        not wrong, f"{len(cases) - len(wrong)} of {len(cases)}" + "".join(f"; {k}: {v}" for k, v in wrong.items())
    )


def in_folder(see: Callable[[Path], Seen]) -> Seen:
    """See a fault in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        return see(Path(name))


def templates(folder: Path) -> Seen:
    def case(number: int, text: str) -> str:
        path = folder / f"{number}.jinja"
        path.write_text(text)
        served = Served(*_ONE_THREAD, "--chat-template", str(path))
        try:
            served.until_ready(seconds=60)
        except RuntimeError:
            return ended(served)
        with served:
            return answered(served, lambda client: client.post("/v1/chat/completions", json=_CHAT))

    return all_of({text[:40]: partial(case, number, text) for number, text in enumerate(TEMPLATES)})


def tokenizers(folder: Path) -> Seen:
    def case(number: int, pattern: str) -> str:
        def changed(content: bytes) -> bytes:
            value = json.loads(content)
            split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            value["pre_tokenizer"] = split
            return json.dumps(value).encode()

        served = Served(*_ONE_THREAD, env={"SPLITFUSE_MODEL": str(with_model(folder / str(number), tokenizer=changed))})
        try:
            served.until_ready(seconds=60)
        except RuntimeError:
            return ended(served)
        with served:
            return answered(served, lambda client: client.post("/generate", json={**_BODY, "prompt": "a" * 400 + "!"}))

    return all_of({pattern: partial(case, number, pattern) for number, pattern in enumerate(PATTERNS)})


def adapters(folder: Path) -> Seen:
    def header(value: object) -> bytes:
        text = json.dumps(value).encode()
        return struct.pack("<Q", len(text)) + text

    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    config = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "peft_type": "LORA"}
    files: dict[str, tuple[Any, bytes]] = {
        "huge shape": (config, header({name: {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}})),
        "long header": (config, struct.pack("<Q", 2**63) + b"{"),
        "deep header": (config, struct.pack("<Q", 400_000) + b'{"a":' * 80_000),
        "huge rank": ({**config, "r": 2**62}, header({})),
        "nested config": (json.loads("[" * 500 + "]" * 500), header({})),
        "pattern": (
            {**config, "alpha_pattern": {"(([a-z._0-9]*)*)*\\$": 1}, "rank_pattern": {"(a+)+$": 2}},
            header({}),
        ),
        "targets": ({**config, "target_modules": "(([a-z._0-9]*)*)*\\$"}, header({})),
    }
    with Served(*_ONE_THREAD, "--enable-lora", "--lora-dir", str(folder)) as served:

        def case(number: int, config: Any, weights: bytes) -> str:
            path = folder / str(number)
            path.mkdir()
            (path / "adapter_config.json").write_text(json.dumps(config))
            (path / "adapter_model.safetensors").write_bytes(weights)
            body = {"lora_name": f"a{number}", "lora_path": str(path)}
            return answered(served, lambda client: client.post("/v1/load_lora_adapter", json=body))

        return all_of({name: partial(case, number, *files[name]) for number, name in enumerate(files)})


def results_files(folder: Path) -> Seen:
    whole = folder / "whole"
    with Served(*_ONE_THREAD, "--results", str(whole)) as served, served.client() as client:
        for _ in range(5):
            client.post("/generate", json={**_BODY, "durable": True}).raise_for_status()
        served.until_idle()
    rng = random.Random(1)

    def endless_view(path: Path) -> None:
        with sqlite3.connect(path) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
                database.execute(f"DROP TABLE IF EXISTS {table}")
                select = ", ".join(f"x AS {column}" for column in columns)
                endless = f"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT {select} FROM c"
                database.execute(f"CREATE VIEW {table} AS {endless}")

    def flipped(path: Path) -> None:
        content = bytearray(path.read_bytes())
        for _ in range(200):
            content[rng.randrange(100, len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)

    def pipe(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    def folder_instead(path: Path) -> None:
        path.unlink()
        path.mkdir()

    changes: dict[str, Callable[[Path], object]] = {
        "endless view": endless_view,
        "flipped bits": flipped,
        "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
        "noise": lambda path: path.write_bytes(rng.randbytes(2**16)),
        "a folder": folder_instead,
        "a pipe": pipe,
    }

    def case(number: int, change: Callable[[Path], object]) -> str:
        path = folder / str(number)
        shutil.copy(whole, path)
        change(path)
        path.chmod(0o700 if path.is_dir() else 0o600)
        return start("--results", str(path))

    return all_of({name: partial(case, number, changes[name]) for number, name in enumerate(changes)})


def cut_model(folder: Path) -> Seen:
    """The file is cut while the server runs: the answers are as before, or the process ends; both within seconds."""
    weights = with_model(folder / "model") / "model.safetensors"
    with Served(*_ONE_THREAD, env={"SPLITFUSE_MODEL": str(weights.parent)}) as served, served.client() as client:
        expected = client.post("/v1/completions", json=_BODY).json()["choices"]
        os.truncate(weights, weights.stat().st_size // 3)
        try:
            found = client.post("/v1/completions", json=_BODY).json()["choices"]
        except httpx.HTTPError:
            return Seen(served.wait(10) is not None, f"exit {served.wait(0)}")
        swapped = client.post("/weights", json={"path": str(weights.parent)}).status_code
        told = "the same answer" if found == expected else "another answer"
        return Seen(found == expected and swapped < 500, f"{told}; /weights {swapped}")


def no_files(folder: Path) -> Seen:
    """Descriptors run out at each accept and open; afterwards all is as before."""
    wrong = list[str]()
    with Served(
        *_ONE_THREAD, "--results", str(folder / "results"), "--prefix-cache-dir", str(folder / "cache")
    ) as served:
        limits = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
        for spare in range(12):
            with ExitStack() as stack:
                most = max(int(name) for name in os.listdir(f"/proc/{served.process.pid}/fd")) + 1
                resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (most + spare, limits[1]))
                for _ in range(spare + 4):
                    stack.enter_context(served.connect())
                for path, body in (("/generate", _BODY), ("/v1/chat/completions", _CHAT)):
                    with suppress(httpx.HTTPError), served.client(timeout=2) as client:
                        if (answer := client.post(path, json=body)).status_code == 500:
                            wrong.append(f"{spare}: {path} 500 {answer.text[:200]}")
                resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, limits)
            if told := answered(served, lambda client: client.post("/generate", json=_BODY)):
                wrong.append(f"{spare}: {told}")
    return Seen(not wrong, f"12 limits; {'; '.join(wrong)}")


def full_shared_memory() -> Seen:
    """In a mount namespace of its own /dev/shm has 64 KiB."""
    small = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$0" "$@"'
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        return Seen(True, "no namespaces here: not tried")
    told = start("--tensor-parallel-size", "2", program=("unshare", "--mount", "sh", "-c", small, *SERVE))
    return Seen(not told, told or "ready, or one line")


def receipts() -> Seen:
    rng, statuses = random.Random(1), dict[str, int]()
    with Served(*_ONE_THREAD) as served, served.client() as client:
        made = client.post("/v1/completions", json={**_BODY, "temperature": 1.0, "receipt": True}).json()["receipt"]
        assert client.post("/verify", json={"receipt": made}).json()["valid"] is True
        for _ in range(400):
            receipt = json.loads(json.dumps(made))
            places = list(_places(receipt))
            holder, key = rng.choice(places)
            holder[key] = rng.choice(
                [None, -1, 10**30, 1e300, "", "a" * 70, [], {}, [[[]]], True, "\0", 3, [10**6] * 9]
            )
            answer = client.post("/verify", json={"receipt": receipt})
            is_same = json.dumps(receipt) == json.dumps(made)
            told = f"{answer.status_code} {answer.json().get('valid', '') if not is_same else ''}"
            statuses[told.strip()] = statuses.get(told.strip(), 0) + 1
    return Seen(
        all(told.startswith(("200 False", "400", "200", "409", "413")) and told != "200 True" for told in statuses),
        str(statuses),
    )


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def shared_cache(folder: Path) -> Seen:
    """Two servers write to one folder with links, pipes and foreign files in it; answers stay, nothing else goes."""
    cache, foreign = folder / "cache", folder / "foreign"
    foreign.write_text("mine")
    prompts = [f"{number} " + "Once upon a time there was a girl. " * 12 for number in range(8)]
    args = (*_ONE_THREAD, "--prefix-cache-dir", str(cache), "--num-kv-blocks", "80")

    def ask(served: Served) -> list[Any]:
        with served.client() as client:
            bodies = [{**_BODY, "prompt": prompt} for prompt in prompts]
            return [client.post("/v1/completions", json=body).json()["choices"][0]["text"] for body in bodies]

    with Served(*_ONE_THREAD) as plain:
        expected = ask(plain)
    wrong = 0
    with Served(*args) as one, Served(*args) as other:
        wrong += sum(ask(served) != expected for served in (one, other, one, other))
        deadline = time.monotonic() + 30
        while len(entries := [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 4096]) < 8:
            assert time.monotonic() < deadline, "no entries"
            time.sleep(0.2)
        for number, path in enumerate(entries):
            target = path.with_name(path.name + "-away")
            if number % 4 == 0:
                path.rename(target)
                path.symlink_to(foreign)
            elif number % 4 == 1:
                path.unlink()
                os.mkfifo(path)
            elif number % 4 == 2:
                path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
        wrong += sum(ask(served) != expected for served in (one, other))
    with Served(*args) as again:
        wrong += ask(again) != expected
    return Seen(not wrong and foreign.read_text() == "mine", f"{wrong} of 7 readings differ")


_PROMISE = "answered or refused in one line, in seconds; the server goes on"
FAULTS = (
    Fault("H1", "chat templates without an end", _PROMISE, partial(in_folder, templates)),
    Fault("H2", "tokenizers with exponential patterns", _PROMISE, partial(in_folder, tokenizers)),
    Fault("H3", "adapters with impossible files", _PROMISE, partial(in_folder, adapters)),
    Fault("H4", "files of results that are none", _PROMISE, partial(in_folder, results_files)),
    Fault("H5", "a model's file is cut while it is served", "the same answer, or an end",
          partial(in_folder, cut_model)),
    Fault("H6", "no more descriptors at each accept and open", "no 500, and the server goes on",
          partial(in_folder, no_files)),
    Fault("H7", "/dev/shm is full", "two ranks start, or one line says why not", full_shared_memory),
    Fault("H8", "400 changed receipts", "false or refused, never true, never 500", receipts),
    Fault("H9", "two servers, links and pipes in one cache folder", "answers stay, foreign files too",
          partial(in_folder, shared_cache)),
)  # fmt: skip
