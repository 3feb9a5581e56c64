"""Switches of servers and of requests, and rows in which every pair of their values occurs that may stand together."""

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

Row = dict[str, str]
Switches = Mapping[str, Mapping[str, Any]]
Pair = tuple[tuple[str, str], tuple[str, str]]

EVENTS = ("none", "aborts", "pause", "sleep", "weights", "kill")
_KEYS = ("--api-key", "key-of-the-first", "--api-key", "key-of-the-other")
# Arguments of `splitfuse serve` by value. FOLDER, DATABASE and FILES: see files.py.
SERVER: Switches = {
    "model": {"demo": ["FILES/demo"], "hybrid": ["FILES/hybrid"]},
    "ranks": {"1": [], "2": ["--tensor-parallel-size", "2"]},
    "dtype": {"float32": ["--dtype", "float32"], "bfloat16": ["--dtype", "bfloat16"]},
    "kv": {"auto": [], "int8": ["--kv-cache-dtype", "int8"]},
    "blocks": {"few": ["--num-kv-blocks", "96"], "many": ["--num-kv-blocks", "600"]},
    "block_size": {"16": [], "8": ["--block-size", "8"]},
    "seqs": {"3": ["--max-num-seqs", "3"], "16": ["--max-num-seqs", "16"]},
    "budget": {name: ["--max-num-batched-tokens", name] for name in ("32", "512")} | {"auto": []},
    "chunk": {"all": [], "16": ["--long-prefill-token-threshold", "16"]},
    "prefixes": {"on": [], "off": ["--no-enable-prefix-caching"]},
    "policy": {name: ["--batching-policy", name] for name in ("splitfuse", "prefill_first", "decode_first", "static")},
    "order": {name: ["--scheduling-policy", name] for name in ("fcfs", "priority", "fair")},
    "preemption": {
        "recompute": ["--preemption-mode", "recompute"],
        "swap": ["--preemption-mode", "swap", "--swap-space", "0.1"],
    },
    "drafts": {"none": [], **{name: ["--speculative-config", name] for name in ("ngram", "suffix")}},
    "disk": {"none": [], "folder": ["--prefix-cache-dir", "FOLDER/cache"]},
    "results": {"memory": [], "file": ["--results", "FOLDER/results"], "database": ["--results", "DATABASE"]},
    "lora": {"off": [], "on": ["--enable-lora", "--lora-modules", "adapter=FILES/adapter"]},
    "pooler": {"off": [], "on": ["--pooler-config", '{"pooling_type": "LAST"}']},
    "goal": {"none": [], "itl": ["--itl-ms", "50"], "ttft": ["--ttft-ms", "60000"]},
    "interval": {"1": [], "4": ["--stream-interval", "4"]},
    "log": {"off": ["--no-request-log"], "steps": ["--log-steps"]},
    "record": {"off": [], "on": ["--record", "FOLDER/record"]},
    "async": {"on": [], "off": ["--no-async-scheduling"]},
    "keys": {"none": [], "two": [*_KEYS, "--admin-key", "key-of-all"]},
    "event": {name: ["--weights-dir", "FILES"] for name in EVENTS},
}  # fmt: skip
NUMBERS = ("model", "ranks", "dtype", "kv")  # switches on which the bits of an answer may depend
# Fields of a request by value; a request has `max_tokens` and `seed` of its own.
_PROMPT = "Once upon a time there was a little girl who lived in a small house. "
REQUEST: Switches = {
    "prompt": {
        "short": {"prompt": "One day"},
        "long": {"prompt": _PROMPT * 9},
        "shared": {"prompt": _PROMPT * 4 + "She"},
        "moved": {"prompt": "a " * 16 + _PROMPT * 6},  # blocks of the long one's tokens after other ones
    },
    "door": {name: {} for name in ("poll", "stream", "durable", "twice", "attach", "fork")},
    "n": {"1": {}, "3": {"n": 3}},
    "temperature": {"0": {"temperature": 0}, "1": {"temperature": 1.0}},
    "top_p": {"off": {}, "0.8": {"top_p": 0.8}},
    "top_k": {"off": {}, "20": {"top_k": 20}},
    "min_p": {"off": {}, "0.05": {"min_p": 0.05}},
    "penalties": {"off": {}, "on": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.2}},
    "bias": {"off": {}, "on": {"logit_bias": {"40": 2.0, "50": -100}}},
    "bad_words": {"off": {}, "on": {"bad_words": ["the", "little"]}},
    "stop": {"off": {}, "on": {"stop": ["day", ". She"]}},
    "min_tokens": {"0": {}, "12": {"min_tokens": 12}},
    "logprobs": {"off": {}, "3": {"logprobs": 3}},
    "prompt_logprobs": {"off": {}, "1": {"prompt_logprobs": 1}},
    "grammar": {"off": {}, "json": {"structured_outputs": {"json": {"type": "array", "items": {"type": "integer"}}}},
                "regex": {"structured_outputs": {"regex": "[a-z ]{20,60}"}}},
    "end": {"model": {}, "ignored": {"ignore_eos": True}},
    "priority": {"0": {}, "5": {"priority": 5}},
    "receipt": {"off": {}, "on": {"receipt": True}},
    "goal": {"none": {}, "ttft": {"ttft_ms": 60000}},
    "length": {"24": {"max_tokens": 24}, "90": {"max_tokens": 90}},
}  # fmt: skip
# Pairs that a server refuses, or that say nothing: never in a row.
REFUSED: frozenset[frozenset[tuple[str, str]]] = frozenset(
    frozenset(pair)
    for pair in (
        (("event", "kill"), ("results", "memory")),  # loses what it has not promised
        (("disk", "folder"), ("prefixes", "off")),
        (("disk", "folder"), ("record", "on")),
        (("ranks", "2"), ("disk", "folder")),
        (("ranks", "2"), ("lora", "on")),
        (("ranks", "2"), ("model", "hybrid")),
        (("ranks", "2"), ("event", "weights")),
        (("ranks", "2"), ("event", "sleep")),
        (("lora", "on"), ("model", "hybrid")),
        (("lora", "on"), ("pooler", "on")),
        (("record", "on"), ("event", "weights")),
        (("lora", "on"), ("event", "weights")),
        (("lora", "on"), ("event", "sleep")),
        (("goal", "itl"), ("policy", "static")),
        (("goal", "ttft"), ("policy", "static")),
        (("stop", "on"), ("grammar", "regex")),
        (("min_tokens", "12"), ("grammar", "json")),
        (("bad_words", "on"), ("grammar", "regex")),
    )
)


def covering(switches: Switches, rng: random.Random) -> list[Row]:
    """Return rows in which every pair of values occurs that is not refused (AETG: the best of some greedy rows)."""
    left = {pair for pair in _all_pairs(switches) if frozenset(pair) not in REFUSED}
    rows: list[Row] = []
    while left:
        first = rng.choice(sorted(left))
        best = max(
            (_row(switches, dict(first), left, rng) for _ in range(8)), key=lambda row: len(left & pairs_of(row))
        )
        assert left & pairs_of(best), f"{first} stands in no row: one of REFUSED is too wide"
        left -= pairs_of(best)
        rows.append(best)
    return rows


def pairs_of(row: Row) -> set[Pair]:
    """Return all pairs of a row's values."""
    return set(itertools.combinations(sorted(row.items()), 2))


def _all_pairs(switches: Switches) -> Iterator[Pair]:
    for one, other in itertools.combinations(sorted(switches), 2):
        yield from itertools.product(
            ((one, value) for value in switches[one]), ((other, value) for value in switches[other])
        )


def _row(switches: Switches, row: Row, left: set[Pair], rng: random.Random) -> Row:
    names = [name for name in switches if name not in row]
    for name in rng.sample(names, len(names)):
        values = [value for value in switches[name] if _may_stand(row, name, value)]
        rng.shuffle(values)
        row[name] = max(values, key=lambda value: len(left & _with(row, name, value)))
    return row


def _with(row: Row, name: str, value: str) -> set[Pair]:
    return {tuple(sorted(((name, value), item))) for item in row.items()}  # type: ignore[misc]


def _may_stand(row: Row, name: str, value: str) -> bool:
    return all(frozenset(((name, value), item)) not in REFUSED for item in row.items())


def arguments(row: Row) -> list[str]:
    """Return a server's arguments, with names of places that are filled (files.py)."""
    return [part for name in SERVER if name in row for part in SERVER[name][row[name]]]


def body(row: Row, *, seed: int) -> dict[str, Any]:
    """Return a request's body."""
    return {"seed": seed, **{key: item for name, value in row.items() for key, item in REQUEST[name][value].items()}}
