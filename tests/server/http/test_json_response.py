"""JSON of long lists: what orjson serialises differently is left to the standard library."""

import json
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from splitfuse.server.http.json_response import dumps, dumps_list, json_slices

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(json_like, max_size=5))
def test_a_long_list_reads_like_any_other(items):
    text = dumps_list(items)
    assert text.isascii()
    assert json.loads(text) == items
    assert b"".join(json_slices({"a": iter(items), "b": [iter(items)]})).decode() == f'{{"a":{text},"b":[{text}]}}'


@pytest.mark.parametrize(
    "item",
    ["é", "\ud800", 2**64, -(2**63) - 1, None, "null", (1, 2), {1: 2}, 0.1 + 0.2, -0.0, 1e16, 1.5e300, 5e-324],
    ids=repr,
)
def test_a_long_list_has_the_bytes_of_the_standard_library(item):
    assert dumps_list([item]) == json.dumps([item], separators=(",", ":")) == dumps([item])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(number):
    for dump in (dumps, dumps_list, lambda items: dumps({"a": iter(items)}), lambda items: [*json_slices(iter(items))]):
        with pytest.raises(ValueError, match="JSON"):
            dump([{"logprob": number}])


def test_texts_beside_a_long_list_are_kept(monkeypatch):
    value = {"a": iter([1]), "b": "\0", "c": '"', "d": ""}
    assert dumps(value) == '{"a":[1],"b":"\\u0000","c":"\\"","d":""}'
