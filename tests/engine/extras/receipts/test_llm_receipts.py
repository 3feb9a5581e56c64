"""Receipts of an LLM's answers verify on it, and a changed one gets the verdict that POST /verify gives."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import running_engine
from tiny_models import save_model

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.extras.receipts.identity import Identity
from splitfuse.engine.extras.receipts.receipt import Receipt
from splitfuse.engine.extras.receipts.verification import Verdict, verify

GREEDY = SamplingParams(temperature=0, max_tokens=12)
KINDS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=1.1, top_p=0.8, top_k=40, seed=2**63, max_tokens=12, n=2),
    "unseeded": SamplingParams(temperature=1.0, max_tokens=12),
    "penalties": SamplingParams(
        temperature=0.9, seed=5, max_tokens=12, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4
    ),
    "grammar": SamplingParams.from_fields(
        {"temperature": 0.9, "seed": 6, "max_tokens": 24, "structured_outputs": {"regex": "[a-z]{3,6} [0-9]+"}}
    ),
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", device="cpu", dtype="float32", max_model_len=256, num_kv_blocks=64) as llm:
        yield llm


def sent(receipt: Any) -> Any:
    return json.loads(json.dumps(receipt))


def resealed(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"sha256": Receipt.read(fields).sha256}


@pytest.mark.parametrize("kind", KINDS)
def test_receipts_verify(kind: str, llm: LLM) -> None:
    plain = llm.generate(["Once upon a time", "The dog"], KINDS[kind])
    outputs = llm.generate(["Once upon a time", "The dog"], KINDS[kind], receipt=True)
    assert [output.receipt for output in plain] == [None, None]
    for output in outputs:
        assert llm.verify(sent(output.receipt)) == Verdict()
        assert output.receipt is not None
        assert output.receipt["outputs"][0]["token_ids"] == output.outputs[0].token_ids
    if kind != "unseeded":
        assert [one.text for output in outputs for one in output.outputs] == [
            one.text for output in plain for one in output.outputs
        ]


def test_chats_and_single_prompts_can_have_one(llm: LLM) -> None:
    (chat,) = llm.chat([{"role": "user", "content": "Tell me a story."}], max_tokens=8, receipt=True)
    assert llm.verify(sent(chat.receipt)).valid
    proved = SamplingParams(max_tokens=8, wants_receipt=True)
    one, other = llm.generate(["The cat", "The dog"], [proved, GREEDY])
    assert llm.verify(sent(one.receipt)).valid
    assert other.receipt is None


def test_a_changed_receipt_is_found_as_a_server_finds_it(llm: LLM) -> None:
    outputs = llm.generate("Once upon a time", KINDS["sampled"], receipt=True)
    receipt = sent(outputs[0].receipt)
    changed = []
    for index in range(2):
        for position in (0, 5, 11):
            fields = sent(receipt)
            fields["outputs"][index]["token_ids"][position] ^= 3
            changed += [fields, resealed(fields)]
    shorter = sent(receipt)
    del shorter["outputs"][1]["token_ids"][7:]
    changed += [receipt, resealed(shorter), receipt | {"created": 0}, receipt | {"seed": "7"}]

    async def by_engine() -> list[Verdict]:
        async with running_engine(str(DEMO_FOLDER), max_model_len=256, num_kv_blocks=64) as engine:
            identity = await asyncio.to_thread(Identity.of, engine)
            return [await verify(engine, Receipt.read(fields), identity) for fields in changed]

    verdicts = [llm.verify(fields) for fields in changed]
    assert verdicts == asyncio.run(by_engine())
    assert [verdict.valid for verdict in verdicts] == [fields == receipt for fields in changed]
    found = [verdict.mismatch for verdict in verdicts[:12]]
    assert [(one.output, one.position) for one in found if one] == [
        (index, position) for index in range(2) for position in (0, 5, 11) for _ in range(2)
    ]


def test_a_closed_llm_says_so() -> None:
    with LLM("demo", device="cpu", dtype="float32", max_model_len=256, num_kv_blocks=64) as llm:
        receipt = sent(llm.generate("The dog", GREEDY, receipt=True)[0].receipt)
    for ask in (lambda: llm.verify(receipt), lambda: llm.generate("The dog", GREEDY, receipt=True)):
        with pytest.raises(InvalidRequestError, match="this LLM is closed"):
            ask()


def test_a_receipt_names_the_weights_that_sampled(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder, seed in zip(folders, (1, 2), strict=True):
        model = save_model("llama-gqa-tied", folder)
        for parameter in model.parameters():
            parameter.data.mul_(seed)
        model.save_pretrained(folder)
    with LLM(str(folders[0]), device="cpu", dtype="float32") as llm:
        old, new = llm.generate([[20, 21, 22]], GREEDY, receipt=True)[0].receipt, None
        llm.update_weights(folders[1])
        new = llm.generate([[20, 21, 22]], GREEDY, receipt=True)[0].receipt
        assert llm.verify(sent(new)).valid
        with pytest.raises(InvalidRequestError, match="of another model: weights"):
            llm.verify(sent(old))
