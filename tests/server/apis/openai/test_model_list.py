"""/v1/models, in the form of the client's API."""

import pytest

from splitfuse.server.settings import Settings

HEADERS = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize("settings", [Settings(served_model_name="mine,other,claude-*")])
async def test_clients_of_anthropic_get_their_form(served):
    listed = (await served.client.get("/v1/models?limit=20", headers=HEADERS)).json()
    assert {name: value for name, value in listed.items() if name != "data"} == {
        "has_more": False,
        "first_id": "mine",
        "last_id": "other",
    }
    for entry in listed["data"]:
        assert entry["type"] == "model"
        assert entry["display_name"] == entry["id"]
        assert entry["created_at"].endswith("Z")
        assert entry["max_input_tokens"] == 512
        assert (await served.client.get(f"/v1/models/{entry['id']}", headers=HEADERS)).json() == entry
    assert (await served.client.get("/v1/models")).json()["object"] == "list"
    assert (await served.client.get("/v1/models/none", headers=HEADERS)).status_code == 404
