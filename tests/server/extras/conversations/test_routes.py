"""/v1/conversations as the `openai` package sends and reads them, and responses within them."""

import openai
import pytest
from fake_engine import FakeEngine, answer_text
from serving import serving

from splitfuse.server.app import build_app
from splitfuse.server.extras.conversations.part import ConversationsPart
from splitfuse.server.settings import Settings

MODEL = "splitfuse-demo-5m"
HELLO = {"role": "user", "content": "Hello"}


def client_of(url, key="unused"):
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)


@pytest.fixture
async def client(served):
    async with client_of(served.url) as client:
        yield client


async def texts(client, conversation_id, **query):
    """Return kind and text of the items, oldest first."""
    page = await client.conversations.items.list(conversation_id, order="asc", **query)
    return [(item.type, item.role, item.content[0].text) for item in page.data]


async def test_a_conversation_is_kept(client):
    begun = await client.conversations.create(items=[HELLO], metadata={"topic": "x"})
    assert begun.id.startswith("conv_")
    assert (begun.object, begun.metadata) == ("conversation", {"topic": "x"})
    assert await client.conversations.retrieve(begun.id) == begun
    updated = await client.conversations.update(begun.id, metadata={"topic": "y"})
    assert (updated.id, updated.created_at, updated.metadata) == (begun.id, begun.created_at, {"topic": "y"})
    assert await client.conversations.retrieve(begun.id) == updated
    deleted = await client.conversations.delete(begun.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (begun.id, "conversation.deleted", True)
    for call in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            await call(begun.id)


async def test_items_are_added_listed_and_deleted(client, served):
    conversation = await client.conversations.create()
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    added = await client.conversations.items.create(conversation.id, items=[HELLO, call, result])
    assert [item.type for item in added.data] == ["message", "function_call", "function_call_output"]
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[2].id, False)
    assert (added.data[0].content[0].type, added.data[0].status) == ("input_text", "completed")
    page = await client.conversations.items.list(conversation.id, limit=2)
    assert [item.id for item in page.data] == [item.id for item in reversed(added.data)][:2]
    assert page.has_more
    assert [item.id async for item in page] == [item.id for item in reversed(added.data)]
    found = await client.conversations.items.retrieve(added.data[1].id, conversation_id=conversation.id)
    assert (found.type, found.name, found.arguments) == ("function_call", "f", "{}")
    after = await client.conversations.items.delete(added.data[1].id, conversation_id=conversation.id)
    assert after == conversation
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.retrieve(added.data[1].id, conversation_id=conversation.id)
    assert (await served.client.get("/v1/files")).json()["data"] == []
    assert (await served.client.get(f"/v1/files/{conversation.id}")).status_code == 404


async def test_responses_read_and_add(client, served):
    conversation = await client.conversations.create(items=[{"role": "system", "content": "Be kind."}])
    first = await client.responses.create(
        model=MODEL, input="Hello", conversation=conversation.id, max_output_tokens=4, instructions="Short."
    )
    assert first.conversation.id == conversation.id
    prompt = "<system>Be kind.\n<user>Hello\n<assistant>"
    answer = first.output_text
    assert answer == answer_text(prompt.replace("Be kind.", "Short.\n\nBe kind."), num_tokens=4)
    expected = [("system", "Be kind."), ("user", "Hello"), ("assistant", answer)]
    assert await texts(client, conversation.id) == [("message", *item) for item in expected]
    events = [
        event
        async for event in await client.responses.create(
            model=MODEL,
            input="And?",
            conversation={"id": conversation.id},
            max_output_tokens=4,
            stream=True,
            store=False,
        )
    ]
    second = events[-1].response.output_text
    assert second == answer_text(f"{prompt}{answer}\n<user>And?\n<assistant>", num_tokens=4)
    items = await texts(client, conversation.id)
    assert items[3:] == [("message", "user", "And?"), ("message", "assistant", second)]
    counted = await served.client.post(
        "/v1/responses/input_tokens", json={"input": "x", "conversation": conversation.id}
    )
    texts_before = f"{prompt}{answer}\n<user>And?\n<assistant>{second}\n<user>x\n<assistant>"
    assert counted.json()["input_tokens"] == len(texts_before)


async def test_a_response_that_does_not_complete_adds_nothing(client, served):
    conversation = await client.conversations.create()
    served.engine.hold()
    running = await client.responses.create(model=MODEL, input="Hello", conversation=conversation.id, background=True)
    await client.responses.cancel(running.id)
    await served.engine.allow()
    served.engine.fail_at = 0
    with pytest.raises(openai.InternalServerError):
        await client.responses.create(model=MODEL, input="Hello", conversation=conversation.id)
    assert await texts(client, conversation.id) == []


@pytest.mark.parametrize(
    ("path", "body", "param", "status"),
    [
        ("", {"items": "x"}, "items", 400),
        ("", {"items": [{"role": "user", "content": 5}]}, "items[0].content", 400),
        ("", {"items": [{"type": "web_search_call"}]}, "items[0].type", 400),
        ("", {"metadata": {"a": 5}}, "metadata", 400),
        ("/conv_none", {"metadata": {}}, None, 404),
        ("/conv_none/items", {"items": [HELLO]}, None, 404),
    ],
)
async def test_refusals(served, path, body, param, status):
    answer = await served.client.post("/v1/conversations" + path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


async def test_a_response_names_a_conversation_that_there_is(served):
    for fields, status in (
        ({"conversation": "conv_none"}, 404),
        ({"conversation": 5}, 400),
        ({"conversation": "conv_x", "previous_response_id": "resp_x"}, 400),
    ):
        answer = await served.client.post("/v1/responses", json={"input": "x", **fields})
        assert answer.status_code == status, answer.text
    assert served.engine.num_submitted == 0


@pytest.mark.parametrize("settings", [Settings(api_key=("mine", "yours"))])
async def test_a_conversation_is_its_owners(served):
    async with client_of(served.url, "mine") as mine, client_of(served.url, "yours") as yours:
        conversation = await mine.conversations.create(items=[HELLO])
        for call in (
            lambda: yours.conversations.retrieve(conversation.id),
            lambda: yours.conversations.items.list(conversation.id),
            lambda: yours.responses.create(model=MODEL, input="x", conversation=conversation.id),
            lambda: yours.conversations.delete(conversation.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call()
        assert await texts(mine, conversation.id) == [("message", "user", "Hello")]


@pytest.mark.parametrize("settings", [Settings(max_total_file_bytes=2_000)])
async def test_conversations_have_a_limit(served):
    items = [{"role": "user", "content": "x" * 400}]
    answers = [await served.client.post("/v1/conversations", json={"items": items}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 413, 413]
    assert answers[1].json()["error"]["code"] == "file_too_large"


@pytest.mark.parametrize(("is_sealed", "is_shared"), [(False, False), (True, False), (False, True)])
async def test_another_process_adds_what_was_completed(tmp_path, is_sealed, is_shared, monkeypatch, request):
    key_file = tmp_path / "key"
    key_file.touch(mode=0o600)
    key_file.write_text("00" * 32)
    keys = {"results_key_file": str(key_file)} if is_sealed else {}
    file = request.getfixturevalue("postgres").database() if is_shared else str(tmp_path / "results.db")
    settings = Settings(results=file, results_url="http://127.0.0.1:1" if is_shared else "", **keys)
    app = build_app(settings, FakeEngine())
    async with serving(app) as url, client_of(url) as client:
        await app.state.service.lifecycle.loading
        conversation = await client.conversations.create(items=[HELLO], metadata={"a": "b"})
        monkeypatch.setattr(ConversationsPart, "follow", lambda *args: None)  # like a crash before the items are added
        done = await client.responses.create(model=MODEL, input="More", conversation=conversation.id)
    app = build_app(settings, FakeEngine())
    async with serving(app) as url, client_of(url) as client:
        await app.state.service.lifecycle.loading
        for _ in range(2):
            assert [text for *_, text in await texts(client, conversation.id)] == ["Hello", "More", done.output_text]
        assert (await client.conversations.retrieve(conversation.id)).metadata == {"a": "b"}
