"""Faults of the engine and of requests: steps that hang or raise, floods, grammars, words."""

import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from faults.fault import Fault, Seen, complete, timed
from faults.planted import MARK
from served import Served

from splitfuse.server.process.exit import HUNG_EXIT


def planted(name: str, *args: str) -> Served:
    """Start a server with a fault of `planted.py`."""
    return Served(*args, program=(sys.executable, "-P", "-m", "faults.planted", name))


def long_prompts() -> Seen:
    body = json.dumps({"prompt": "zq" * 500_000, "max_tokens": 1}).encode()
    with Served() as served, served.client(timeout=180) as client, ThreadPoolExecutor(40) as pool:
        before = served.usage().rss_mb
        sent = [pool.submit(lambda: client.post("/generate", content=body).status_code) for _ in range(40)]
        time.sleep(0.5)
        answer, seconds = timed(partial(complete, client))
        statuses = {future.result() for future in sent}
        grown = served.usage().rss_mb - before
    holds = answer.status_code == 200 and seconds < 3 and statuses <= {400, 413, 429} and grown < 300
    return Seen(holds, f"a small request takes {seconds:.1f} s, the long ones get {statuses}, {grown:+.0f} MiB")


def hung_step() -> Seen:
    with planted("hang", "--drain-timeout", "3") as served, served.client() as client:
        client.post("/generate", json={"prompt": [MARK, 20]})
        time.sleep(1)
        served.signal(signal.SIGTERM)
        code, seconds = timed(lambda: served.wait(20))
    return Seen(code is not None, f"exit {code} after {seconds:.0f} s")


def hung_step_is_told() -> Seen:
    with planted("hang", "--step-timeout", "20") as served, served.client() as client:
        complete(client)  # the longest step so far is a short one
        client.post("/generate", json={"prompt": [MARK, 20]})
        statuses = set()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and served.process.poll() is None:
            statuses.add(served.status("/health"))
            time.sleep(0.5)
        code = served.wait(5)
        has_stacks = "every thread's stack follows" in served.log and "in _hang" in served.log
    holds = code == HUNG_EXIT and has_stacks and statuses - {None} == {200, 503}
    return Seen(holds, f"/health {statuses}, exit {code}, stacks in the log: {has_stacks}")


def failing_steps() -> Seen:
    """Expect a server that never gets ready, or reports itself failing once no step succeeds."""
    served = planted("always")
    try:
        served.until_ready(seconds=30)
    except RuntimeError:
        return Seen(served.status("/ready") != 200, "it does not get ready")
    finally:
        served.__exit__(None, None, None)
    return Seen(False, "/ready is 200")


def transient_fault() -> Seen:
    with planted("once") as served, served.client() as client:
        answer = complete(client, max_tokens=20, temperature=0, ignore_eos=True)
        told = answer.json()["choices"][0]["text"] if answer.status_code == 200 else ""
    with Served() as served, served.client() as client:
        expected = complete(client, max_tokens=20, temperature=0, ignore_eos=True).json()["choices"][0]["text"]
    return Seen(told == expected, f"{answer.status_code}, the text is {'equal' if told == expected else 'another'}")


def flooded_cache() -> Seen:
    keys = ("--api-key", "victim", "--api-key", "flood")
    prompt = list(range(100, 431))
    flood = [("flood", [300 + number] * 900) for number in range(8)]
    with Served("--num-kv-blocks", "130", *keys) as served, served.client() as client:
        for key, tokens in [("victim", prompt), *flood, ("victim", prompt)]:
            headers = {"Authorization": f"Bearer {key}"}
            answer = client.post("/generate", json={"prompt": tokens, "max_tokens": 2}, headers=headers).json()
            result = client.get(answer["result_url"] + "?wait=60", headers=headers).json()
    cached = result["usage"]["cached_tokens"]
    return Seen(cached == 320, f"{cached} of 320 tokens are cached")


def bad_word_alone() -> Seen:
    with Served() as served, served.client() as client:
        tokens = {"prompt": " dog", "add_special_tokens": False}
        ids = client.post("/tokenize", json=tokens).json()["tokens"]
        answer = complete(client, "Once", allowed_token_ids=ids, bad_words=["dog"])
    assert len(ids) == 1, "the word should be one token"
    return Seen(answer.status_code == 400, f"{answer.status_code} {answer.text[:80]}")


def slow_grammars() -> Seen:
    with Served() as served, served.client(timeout=120) as client, ThreadPoolExecutor(80) as pool:
        for number in range(80):
            slow = {"regex": f"x{number}" + "(?i)" + r"\p{L}*" * 3000}
            pool.submit(complete, client, structured_outputs=slow)
        time.sleep(0.5)
        answer, seconds = timed(partial(complete, client, structured_outputs={"regex": "[a-c]+"}))
    return Seen(answer.status_code == 200 and seconds < 3, f"{answer.status_code} after {seconds:.1f} s")


def first_retry_after() -> Seen:
    with Served(is_forked=True) as served, served.client() as client:
        for _ in range(20):
            body = {"prompt": "Once", "n": 64, "max_tokens": 400, "ignore_eos": True}
            answer = client.post("/generate", json=body)
            if answer.status_code == 429:
                break
    wait = int(answer.headers.get("retry-after", 0))
    return Seen(answer.status_code == 429 and wait > 1, f"{answer.status_code}, Retry-After {wait}")


FAULTS = (
    Fault("R1", "40 prompts of 1 MB", "refused unread; others wait at most 3 s, 300 MiB at most", long_prompts),
    Fault("R2", "a step never returns, then SIGTERM", "the process ends within the drain time and some", hung_step),
    Fault(
        "R2",
        "a step never returns",
        "/health 503, then every stack and exit code 3",
        hung_step_is_told,
    ),
    Fault("R9", "no step succeeds", "never ready", failing_steps),
    Fault("R12", "8 prompts of another tenant in 130 blocks", "320 cached tokens stay", flooded_cache),
    Fault("R13", "the one allowed token is a bad word", "400", bad_word_alone),
    Fault("R17", "80 slow grammars", "an easy one within 3 s", slow_grammars),
    Fault("R18", "a full queue in the first minute", "Retry-After above 1", first_retry_after),
    Fault("R19", "every step fails once", "the same answer", transient_fault),
)
