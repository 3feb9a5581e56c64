"""The body of POST /generate without a server: what is read, and how a refusal names the field and the way out."""

import pytest
from tables import table

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.server.api.native.request import GenerateRequest


def test_null_is_absent_and_defaults_are_the_tables():
    body = GenerateRequest.read({"prompt": "x", "stream": None, "user": None, "temperature": None, "stop": "a"})
    params = body.sampling()
    assert (body.stream, body.user, params.temperature, params.stop) == (False, "", 1.0, ("a",))
    assert (params.max_tokens, params.default_max_tokens) == (None, 64)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [*table(__file__, "refusals"), ({"user": "x" * 257}, "user", "user must be a string of at most 256 characters")],
)
def test_refusals_name_the_field_and_the_way_out(fields, param, message):
    with pytest.raises(InvalidRequestError) as info:
        GenerateRequest.read({} if fields == {} else {"prompt": "x", **fields}).sampling()
    assert info.value.param == param
    assert message in str(info.value)
