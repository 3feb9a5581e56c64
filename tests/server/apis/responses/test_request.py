"""Refusals of /v1/responses, and the fields that they name."""

import dataclasses

from tables import table

from splitfuse.server.apis.responses.request import StoredRequest
from splitfuse.server.apis.responses.routes import KEPT_RESPONSE

REFUSED = [
    *table(__file__, "refused"),
    ("metadata", {"metadata": {"a": "x" * 20_000}}),
    ("input", {"input": "x" * 600}),
    (
        "text.format.schema",
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["a" * 1_100_000]}}}},
    ),
]


async def test_refused_fields_are_named(served):
    for param, fields in REFUSED:
        response = await served.client.post("/v1/responses", json={"input": "x", "max_output_tokens": 2, **fields})
        assert response.status_code == 400, (fields, response.text)
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param), fields
    assert served.engine.num_submitted == 0
    assert len(served.service.results) == 0


def test_a_response_that_an_earlier_version_stored_is_read() -> None:
    stored = StoredRequest(messages=[{"role": "user", "content": "hi"}])
    earlier = dataclasses.asdict(stored) | {"num_earlier": 3}
    assert KEPT_RESPONSE.attachment(earlier) == stored
