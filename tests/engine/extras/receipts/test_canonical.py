"""Canonical JSON has the bytes of RFC 8785's examples."""

import json
import struct

import pytest

from splitfuse.engine.extras.receipts.canonical import canonical


# RFC 8785, appendix B: IEEE 754 bits and their spelling.
@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
    ],
)
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
