"""A receipt is read strictly, and what is read has the bytes that were written."""

import json
from typing import Any

import pytest
from tables import table

from splitfuse.engine import SamplingParams
from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.extras.receipts.identity import Identity
from splitfuse.engine.extras.receipts.receipt import Receipt, ReceiptOutput

IDENTITY = Identity("sha256:a", "sha256:b", None, "cpu float32", arithmetic_version=1)


def receipt(**fields: Any) -> Receipt:
    return Receipt.of(
        SamplingParams(**fields), model="demo", created=1, identity=IDENTITY, seed=2**64 - 1, prompt_token_ids=(1, 2),
        max_tokens=4, outputs=[ReceiptOutput((3, 4), "stop", "é")] * fields.get("n", 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0, "n": 2, "stop": ["é", "."], "logit_bias": {7: 1e-7, 10: 100}},
        {"allowed_token_ids": [3, 4], "bad_words": ["x"], "top_k": -1, "min_p": 0.1},
        {"structured_outputs": {"json": {"type": "object"}, "whitespace_pattern": "[ ]?"}},
        {"structured_outputs": {"choice": ["a", "b"]}},
    ],
    ids=str,
)
def test_what_is_written_is_read(fields: dict[str, Any]) -> None:
    written = receipt(**fields)
    read = Receipt.read(json.loads(json.dumps(written.to_dict())))
    assert (read.sha256, read.claimed_sha256) == (written.sha256, written.sha256)
    assert read.to_dict() == json.loads(json.dumps(written.to_dict()))
    assert read.params.seed == 2**64 - 1


def test_the_hash_of_a_known_receipt_stays() -> None:
    """The format is version 1: a change of it needs another version."""
    assert receipt(temperature=0.5).sha256 == "12f785d70e0d214e0f2dd2441cf63a8b47682cd0db5223cffe4c664b8da81f3d"


@pytest.mark.parametrize(("name", "value"), table(__file__, "other forms"))
def test_another_form_is_refused_by_its_field(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Receipt.read(receipt().to_dict() | {name: value})
    assert str(caught.value.param).startswith("receipt")


@pytest.mark.parametrize(("name", "value"), table(__file__, "other parameters"))
def test_parameters_have_one_form(name: str, value: object) -> None:
    fields = receipt().to_dict()
    with pytest.raises(InvalidRequestError) as caught:
        Receipt.read(fields | {"request": fields["request"] | {name: value}})
    assert str(caught.value.param).startswith("receipt")


@pytest.mark.parametrize("value", [None, [], "receipt", {}, {"receipt": {}}])
def test_what_is_no_receipt_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequestError):
        Receipt.read(value)
