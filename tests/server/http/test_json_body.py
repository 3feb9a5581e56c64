"""JSON bodies: what is read and what is refused, and that no bytes at all can do more than that."""

import asyncio
import contextlib
import json
from types import SimpleNamespace
from unittest.mock import AsyncMock

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from starlette.applications import Starlette
from starlette.requests import Request

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.server.http.json_body import parse, read_json

REFUSED = {
    "empty": b"", "no object": b"[1]", "a string": b'"x"', "null": b"null", "truncated": b'{"a": 1',
    "trailing garbage": b'{"a": 1} x', "two objects": b"{}{}", "NaN": b'{"a": NaN}', "Infinity": b'{"a": [-Infinity]}',
    "too large a float": b'{"a": 1e400}', "too long an integer": b'{"a": ' + b"1" * 5000 + b"}",
    "100 digits": b'{"a": -' + b"1" * 100 + b"}", "a key twice": b'{"a": 1, "a": 1}',
    "a key twice, deeper": b'{"a": [{"b": 1, "b": 2}]}', "lone surrogate": b'{"a": "\\ud800"}',
    "lone surrogate in a list": b'{"a": [["x\\udfff"]]}', "lone surrogate in a key": b'{"\\ud800": 1}',
    "lone surrogate in a key, deeper": b'{"a": {"\\uDC00": 1}}', "reversed pair": b'{"a": "\\udc00\\ud800"}',
    "invalid UTF-8": b'{"a": "\xff"}', "surrogate as UTF-8": b'{"a": "\xed\xa0\x80"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"), "two byte order marks": b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}',
    "single quotes": b"{'a': 1}", "65 levels": b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
    "100,000 levels": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "100,000 levels, unclosed": b'{"a":' + b'{"a":' * 100_000, "a long name": b'{"' + b"a" * 200 + b'": 1}',
    "control character": b'{"a": "\x01"}',
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(InvalidRequestError) as info:
        parse(REFUSED[name])
    assert len(str(info.value)) < 300
    str(info.value).encode()


def test_a_byte_order_mark_is_no_part_of_the_body():
    """Editors of Windows write it; lines of batches took it."""
    assert parse(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_surrogates_name_their_field():
    for body in (b'{"a": 1, "prompt": ["\\ud800"]}', b'{"prompt": {"\\ud800": 1}}'):
        with pytest.raises(InvalidRequestError) as info:
            parse(body)
        assert info.value.param == "prompt"


def test_read():
    body = b' {"a": [1, -0, 1.5e3, 1e-400], "\\u00e9": "\\ud83d\\ude00 \xf0\x9f\x98\x80 \\u0000", "n": null}\n'
    assert parse(body) == {"a": [1, 0, 1500.0, 0.0], "é": "😀 😀 \x00", "n": None}
    assert parse(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}")
    assert parse(b'{"a": [' + b"[]," * 5000 + b"[]]}")
    assert parse(b'{"a": ' + b"9" * 64 + b"}")["a"] == 10**64 - 1


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | json_like.map(lambda value: json.dumps({"a": value}).encode()))
def test_any_bytes_are_an_object_or_a_refusal(body):
    with contextlib.suppress(InvalidRequestError):
        assert isinstance(parse(body), dict)


async def test_a_body_is_parsed_in_its_turn():
    sizes, turn = [], asyncio.Event()

    async def wait(num_bytes):
        sizes.append(num_bytes)
        await turn.wait()

    app = Starlette()
    app.state.body_turns = SimpleNamespace(wait=wait)
    received = {"type": "http.request", "body": b'{"a": NaN}', "more_body": False}
    request = Request({"type": "http", "app": app, "headers": []}, AsyncMock(return_value=received))
    reading = asyncio.create_task(read_json(request, max_bytes=100))
    done, _ = await asyncio.wait([reading], timeout=0.01)
    assert (done, sizes) == (set(), [10])
    turn.set()
    with pytest.raises(InvalidRequestError, match="NaN"):
        await reading
