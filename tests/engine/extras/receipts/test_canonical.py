"""Canonical JSON has the bytes of RFC 8785's examples."""

import json
import struct

import pytest
from tables import table

from splitfuse.engine.extras.receipts.canonical import canonical


# RFC 8785, appendix B: IEEE 754 bits and their spelling.
@pytest.mark.parametrize(("bits", "text"), table(__file__, "numbers"))
def test_numbers(bits: str, text: str) -> None:
    assert canonical(struct.unpack(">d", bytes.fromhex(bits))[0]).decode() == text


def test_texts_and_the_order_of_keys() -> None:
    value = {
        "\u20ac": "Euro",
        "\r": "\n",
        "\ufb33": 1,
        "1": [True, None, '\u20ac$\u000f\n"\\/'],
        "\U0001f600": {},
        "\u0080": "",
    }
    text = canonical(value).decode()
    assert list(json.loads(text)) == ["\r", "1", "\u0080", "\u20ac", "\U0001f600", "\ufb33"]
    assert text.startswith('{"\\r":"\\n","1":[true,null,"\u20ac$\\u000f\\n\\"\\\\/"],')


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, "\ud800"])
def test_what_json_cannot_carry_everywhere_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        canonical(value)
