"""Receipts of random requests verify, and a changed receipt is refused or names the token that does not follow.

`make receipts` runs 1,000 receipts and 10,000 changes.
"""

import asyncio
import copy
import json
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from engines import running_engine
from receipt_requests import answered, random_params, random_prompt

from splitfuse.engine import AsyncEngine, SamplingParams
from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.errors import InvalidRequestError, UnavailableError
from splitfuse.engine.extras.receipts.canonical import canonical
from splitfuse.engine.extras.receipts.identity import Identity
from splitfuse.engine.extras.receipts.receipt import Receipt
from splitfuse.engine.extras.receipts.verification import Verdict, verify

NUM_RECEIPTS = int(os.environ.get("SPLITFUSE_RECEIPTS", "8"))
NUM_CHANGES = 10 * NUM_RECEIPTS
Served = tuple[AsyncEngine, Identity]


@pytest.fixture(
    params=[{"speculative_config": {"method": "ngram"}, "num_kv_blocks": 96}, {"async_scheduling": True}],
    ids=["ngram", "overlapped"],
)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with running_engine(str(DEMO_FOLDER), max_model_len=512, **request.param) as engine:
        yield engine, await asyncio.to_thread(Identity.of, engine)


async def receipts_of(served: Served, count: int, *, seed: int) -> list[Receipt]:
    rngs = [random.Random(f"{seed} {number}") for number in range(count)]
    return await in_groups(
        [answered(*served, random_prompt(rng), SamplingParams.from_fields(random_params(rng))) for rng in rngs]
    )


async def in_groups(work: list[Any]) -> list[Any]:
    return [result for at in range(0, len(work), 16) for result in await asyncio.gather(*work[at : at + 16])]


def sent(receipt: Receipt) -> Any:
    return json.loads(json.dumps(receipt.to_dict()))


async def test_receipts_verify_beside_each_other(served: Served) -> None:
    receipts = await receipts_of(served, NUM_RECEIPTS, seed=1)
    verdicts: list[Verdict] = await in_groups([verify(served[0], Receipt.read(sent(r)), served[1]) for r in receipts])
    assert [verdict.reason for verdict in verdicts if verdict.reason] == []


@pytest.mark.parametrize("served", [{}], indirect=True)
async def test_a_changed_byte_is_found(served: Served) -> None:
    texts = [json.dumps(sent(receipt), separators=(",", ":")) for receipt in await receipts_of(served, 10, seed=2)]
    found = await in_groups([_outcome(served, texts[number % 10], number) for number in range(NUM_CHANGES)])
    assert [outcome for outcome in found if outcome.startswith("missed")] == []
    assert {"refused", "named", "hash"} <= {*found}


def _means_the_same(value: Any, other: Any) -> bool:
    try:
        return canonical(value) == canonical(other)
    except ValueError:
        return False


async def _outcome(served: Served, text: str, number: int) -> str:
    rng = random.Random(number)
    at, kind = rng.randrange(len(text)), rng.choice(["replace", "delete", "insert"])
    letter = rng.choice('0123456789abcdef{}[]",:.-e tn\x00\u00e9')
    changed = text[:at] + ("" if kind == "delete" else letter) + text[at + (kind != "insert") :]
    try:
        value = json.loads(changed)
    except ValueError:
        return "refused"
    if _means_the_same(value, json.loads(text)):
        return "equal"  # white space, a letter replaced by itself, -0.0
    try:
        verdict = await verify(served[0], Receipt.read(value), served[1])
    except InvalidRequestError:
        return "refused"
    if not verdict.reason:
        return f"missed {number}"
    return "hash" if verdict.mismatch is None else "named"


@pytest.mark.parametrize("served", [{}], indirect=True)
async def test_a_changed_token_is_named_by_its_position(served: Served) -> None:
    """Also if whoever changed the token has written a new hash."""
    receipts = await receipts_of(served, NUM_RECEIPTS, seed=3)
    work, places = [], []
    for number, receipt in enumerate(receipts):
        rng = random.Random(number)
        fields = sent(receipt)
        index = rng.randrange(len(fields["outputs"]))
        token_ids = fields["outputs"][index]["token_ids"]
        position = rng.randrange(len(token_ids))
        change = rng.choice(["replace", "cut", "append"]) if number else "huge"
        if change == "replace":
            token_ids[position] ^= rng.randint(1, 255)
        elif change == "huge":
            token_ids[position] = 2**31 - 1
        elif change == "cut":
            del token_ids[position:]
        else:
            position = len(token_ids)
            token_ids.append(5)
        places.append((index, position))
        resealed = Receipt.read(fields)
        work.append(verify(served[0], Receipt.read(fields | {"sha256": resealed.sha256}), served[1]))
    verdicts: list[Verdict] = await in_groups(work)
    assert [(v.mismatch.output, v.mismatch.position) if v.mismatch else None for v in verdicts] == places


@pytest.mark.parametrize("served", [{}], indirect=True)
async def test_another_model_is_named_by_the_field_that_differs(served: Served) -> None:
    (receipt,) = await receipts_of(served, 1, seed=4)
    changes = {"weights": "sha256:0", "tokenizer": None, "template": "sha256:1"}
    for name, value in changes.items():
        with pytest.raises(InvalidRequestError, match=f"{name} .*verify with|{name} .*--chat-template") as caught:
            await verify(served[0], Receipt.read(sent(receipt) | {name: value}), served[1])
        assert (caught.value.param, caught.value.code) == (f"receipt.{name}", f"other_{name}")
    for name, value in (("class", "cuda bfloat16"), ("version", 0)):
        fields = copy.deepcopy(sent(receipt))
        fields["arithmetic"][name] = value
        with pytest.raises(InvalidRequestError, match="of another model: arithmetic"):
            await verify(served[0], Receipt.read(fields), served[1])


@pytest.mark.parametrize("served", [{}], indirect=True)
async def test_other_requests_go_on_beside_a_verification(served: Served) -> None:
    """Their answers are those of a quiet engine."""
    engine, identity = served
    receipts = await receipts_of(served, 6, seed=5)
    rng = random.Random(6)
    params = SamplingParams(max_tokens=30, seed=7)
    alone = await answered(engine, identity, random_prompt(rng), params)
    beside, *verdicts = await asyncio.gather(
        answered(engine, identity, list(alone.prompt_token_ids), params),
        *(verify(engine, Receipt.read(sent(receipt)), identity) for receipt in receipts),
    )
    assert beside.sha256 == alone.sha256
    assert [verdict.reason for verdict in verdicts] == [""] * 6


async def test_a_verification_that_is_cut_off_says_nothing(served: Served) -> None:
    engine, identity = served
    (receipt,) = await receipts_of(served, 1, seed=8)
    checking = asyncio.create_task(verify(engine, Receipt.read(sent(receipt)), identity))
    await engine._work.wait()  # it is queued
    engine.abort_all()
    with pytest.raises(UnavailableError, match="cut off"):
        await checking
