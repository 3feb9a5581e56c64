"""The body of POST /generate without a server: what is read, and how a refusal names the field and the way out."""

import pytest

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.server.api.native.request import GenerateRequest


def test_null_is_absent_and_defaults_are_the_tables():
    body = GenerateRequest.read({"prompt": "x", "stream": None, "user": None, "temperature": None, "stop": "a"})
    params = body.sampling()
    assert (body.stream, body.user, params.temperature, params.stop) == (False, "", 1.0, ("a",))
    assert (params.max_tokens, params.default_max_tokens) == (None, 64)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "prompt", "prompt is missing"),
        ({"top_q": 1}, "top_q", "did you mean top_"),
        ({"straem": True}, "straem", "did you mean stream?"),
        ({"no_such_field": None}, "no_such_field", "the nearest that is known is json_schema"),
        ({"stream": 1}, "stream", "stream must be true or false"),
        ({"user": "x" * 257}, "user", "user must be a string of at most 256 characters"),
        ({"n": 65}, "n", "n must be between 1 and 64, not 65"),
        ({"n": True}, "n", "n must be an integer, not bool"),
        ({"top_p": "1"}, "top_p", "top_p must be a number, not str"),
        ({"repetition_penalty": 0}, "repetition_penalty", "must be a finite number above 0 to 100"),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            "must be 'text', 'json_object', 'json_schema' or",
        ),
        ({"response_format": {"type": "text", "typ": 1}}, "response_format.typ", "did you mean response_format.type?"),
    ],
)
def test_refusals_name_the_field_and_the_way_out(fields, param, message):
    with pytest.raises(InvalidRequestError) as info:
        GenerateRequest.read({} if fields == {} else {"prompt": "x", **fields}).sampling()
    assert info.value.param == param
    assert message in str(info.value)
