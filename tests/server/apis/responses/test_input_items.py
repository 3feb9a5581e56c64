"""GET /v1/responses/{id}/input_items, as the `openai` package reads it."""

MODEL = "splitfuse-demo-5m"
INPUT = [
    {"role": "user", "content": "Weather?"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"town": "Rome"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    {"role": "user", "content": [{"type": "input_text", "text": "Thanks"}]},
]


async def test_the_items_of_an_input(client):
    response = await client.responses.create(model=MODEL, input=INPUT, max_output_tokens=2)
    items = (await client.responses.input_items.list(response.id, order="asc")).data
    kinds = ["message", "reasoning", "function_call", "function_call_output", "message"]
    assert [item.type for item in items] == kinds
    assert (items[0].role, items[0].content[0].text) == ("user", "Weather?")
    assert (items[2].call_id, items[2].name, items[2].arguments) == ("c1", "weather", '{"town": "Rome"}')
    assert (items[3].call_id, items[3].output) == ("c1", "sunny")
    assert len({item.id for item in items}) == 5
    newest_first = (await client.responses.input_items.list(response.id)).data
    assert newest_first == items[::-1]


async def test_pages(client, served):
    response = await client.responses.create(model=MODEL, input=INPUT, max_output_tokens=2)
    url = f"/v1/responses/{response.id}/input_items"
    page = (await served.client.get(url + "?limit=2&order=asc")).json()
    assert (page["object"], page["has_more"], len(page["data"])) == ("list", True, 2)
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][1]["id"])
    rest = (await served.client.get(f"{url}?order=asc&after={page['last_id']}")).json()
    assert (rest["has_more"], len(rest["data"])) == (False, 3)
    everything = [item.id async for item in client.responses.input_items.list(response.id, limit=2)]
    assert len(everything) == len(set(everything)) == 5
    for query, param in [("limit=0", "limit"), ("order=up", "order"), ("after=x", "after")]:
        refused = await served.client.get(f"{url}?{query}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_the_conversation_before_is_part_of_it(client):
    first = await client.responses.create(model=MODEL, input="One", max_output_tokens=2)
    second = await client.responses.create(model=MODEL, input="Two", previous_response_id=first.id, max_output_tokens=2)
    items = (await client.responses.input_items.list(second.id, order="asc")).data
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert items[1].content[0].text == first.output_text


async def test_responses_that_are_not_there_or_came_by_another_route(served):
    assert (await served.client.get("/v1/responses/resp_x/input_items")).status_code == 404
    seq_id = (await served.client.post("/generate", json={"prompt": "x"})).json()["seq_id"]
    items = (await served.client.get(f"/v1/responses/resp_{seq_id}/input_items")).json()
    assert items == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_conversations_are_refused_by_name_where_there_are_none(served, monkeypatch):
    monkeypatch.setattr(served.service.extensions, "used", [])
    error = (await served.client.post("/v1/responses", json={"input": "x", "conversation": "c"})).json()["error"]
    assert (error["param"], "conversation is not supported" in error["message"]) == ("conversation", True)
