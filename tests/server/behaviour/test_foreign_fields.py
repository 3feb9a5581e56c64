"""Fields that clients of other servers send: acted on, accepted if they ask for nothing, ignored by name or refused."""

import json
import time

import pytest
from fake_engine import answer_text
from serving import parse_events
from tables import table

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.language.chat.template import ChatTemplate
from splitfuse.server.api.known_fields import HARMLESS, HINTS
from splitfuse.server.api.native.request import GenerateRequest
from splitfuse.server.apis.openai.request import ChatCompletionRequest
from splitfuse.server.apis.responses.request import ResponsesRequest
from splitfuse.server.settings import Settings

MESSAGES = [{"role": "user", "content": "Hello"}]
ROUTES = {
    "/generate": {"prompt": "hello", "max_tokens": 3, "stream": True},
    "/v1/completions": {"prompt": "hello", "max_tokens": 3},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 3},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def post(served, route, **fields):
    return await served.client.post(route, json=ROUTES[route] | fields)


def refused(response, param):
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    return response.json()["error"]["message"]


def chunks(response):
    return [event["data"] for event in parse_events(response.text) if event["data"] != "[DONE]"]


@pytest.mark.parametrize("route", ROUTES)
async def test_hints_are_ignored_by_name_and_what_would_change_the_answer_is_refused(served, route):
    """Values that ask for nothing pass in silence."""
    asked = {"store": False, "metadata": {}, "mm_processor_kwargs": {}, "service_tier": "auto", "prediction": None}
    asked |= {"use_beam_search": False, "length_penalty": 1.0, "documents": [], "kv_transfer_params": None}
    response = await post(served, route, **asked, spaces_between_special_tokens=True, guided_json=None, regex=None)
    assert response.status_code == 200, response.text
    assert "x-ignored-fields" not in response.headers
    response = await post(served, route, safety_identifier="me", service_tier="flex", guided_decoding_backend="x")
    assert response.status_code == 200, response.text
    assert response.headers["x-ignored-fields"] == "guided_decoding_backend,safety_identifier,service_tier"
    assert 'ignored_fields_total{model_name="splitfuse-demo-5m"} 3.0' in (await served.client.get("/metrics")).text
    num_submitted = served.engine.num_submitted
    for name, value in [("use_beam_search", True), ("length_penalty", 2), ("prompt_embeds", [[0.5]]), ("echo", 1)]:
        refused(await post(served, route, **{name: value}), name)
    assert served.engine.num_submitted == num_submitted


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["k{}", "client_metadata_{:07}", "x" * 60 + "{:05}"])
@pytest.mark.parametrize("route", ROUTES)
async def test_many_unknown_fields_are_refused_soon(served, route, name):
    """A MiB of fields took a minute of the event loop: each name was compared with all known names."""
    fields = {name.format(number): 1 for number in range(2**20 // (len(name.format(0)) + 6))}
    begin = time.process_time()
    response = await post(served, route, **fields)
    assert response.status_code == 400, response.text
    assert time.process_time() - begin < 2  # most of it the test's own client


async def test_nested_objects_are_read_the_same_way(served):
    parts = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    messages = [{"role": "user", "content": parts, "id": "m1"}, {"role": "assistant", "content": "x", "refusal": None}]
    response = await post(served, "/v1/chat/completions", messages=[*messages, *MESSAGES])
    assert set(response.headers["x-ignored-fields"].split(",")) == {
        "messages[].id",
        "messages[].content[].cache_control",
    }
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Hi", "annotations": [1]}], "namespace": "n"}]
    response = await post(
        served, "/v1/responses", input=items, reasoning={"summary": "auto"}, text={"verbosity": "low"}
    )
    assert set(response.headers["x-ignored-fields"].split(",")) == {
        *("input[].namespace", "input[].content[].annotations", "reasoning.summary", "text.verbosity")
    }


async def test_what_is_not_known_within_them_is_refused(served):
    for route, fields, param in table(__file__, "unknown within"):
        refused(await post(served, route, **fields), param)


async def test_parts_that_are_no_text_are_refused_by_their_kind(served):
    for kind, what in {"image_url": "image", "input_image": "image", "file": "file", "input_audio": "audio"}.items():
        message = [{"role": "user", "content": [{"type": kind, kind: {"url": "data:,"}}]}]
        chat = await post(served, "/v1/chat/completions", messages=message)
        assert f"{what} parts are not supported: this server serves text models" in refused(chat, "messages[0].content")
        response = await post(served, "/v1/responses", input=message)
        assert f"{what} parts are not" in refused(response, "input[0].content")


async def test_an_unknown_field_is_told_the_nearest(served):
    nearest = {"max_token": "max_tokens", "max_tokns": "max_tokens", "guided_jsn": "guided_json", "stp": "stop"}
    for name, way_out in {**nearest, "tempertaure": "temperature"}.items():
        message = refused(await post(served, "/v1/chat/completions", **{name: 1}), name)
        assert f"did you mean {way_out}?" in message
        assert len(message) < 120, "no list of all"


APIS = {route: fields for route, fields in ROUTES.items() if route != "/generate"} | {
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/api/chat": {"messages": MESSAGES, "stream": False},
    "/api/generate": {"prompt": "hello", "stream": False},
}
FREE = {"client_metadata": {"a": 1}, "x_new": "\n\u00fc", "thinking_level": 3, "banana": True}
HEAVY = ("conversation_id", "previous_message_id", "mcpServers", "output_schema", "stop_words", "max_chars")


@pytest.mark.parametrize("route", APIS)
async def test_an_unknown_field_is_ignored_by_name_unless_it_may_change_the_answer(served, route):
    response = await served.client.post(route, json=APIS[route] | FREE | {"y_new": [], "z_new": None})
    assert response.status_code == 200, response.text
    assert response.headers["x-ignored-fields"] == "banana,client_metadata,thinking_level,x_new"
    assert 'ignored_fields_total{model_name="splitfuse-demo-5m"} 4.0' in (await served.client.get("/metrics")).text
    for name in HEAVY:
        response = await served.client.post(route, json=APIS[route] | {name: "x"})
        assert response.status_code == 400, name
        assert f"unknown field '{name}'" in response.text


async def test_our_own_api_ignores_nothing_unknown(served):
    for name in FREE:
        refused(await post(served, "/generate", **{name: 1}), name)


@pytest.mark.parametrize("settings", [Settings(strict_fields=True)])
@pytest.mark.parametrize("route", APIS)
async def test_strict_fields_refuse_unknown_ones(served, route):
    response = await served.client.post(route, json=APIS[route] | {"banana": 1})
    assert response.status_code == 400
    assert "banana" in response.text


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
async def test_unknown_keys_of_messages_are_ignored_by_name(served, route):
    messages = [{**MESSAGES[0], "banana": 1}]
    response = await served.client.post(route, json=APIS[route] | {"messages": messages})
    assert response.headers["x-ignored-fields"] == "messages[].banana"
    for name in ("contnt", "image_url"):
        response = await served.client.post(route, json=APIS[route] | {"messages": [{**MESSAGES[0], name: "x"}]})
        assert response.status_code == 400, name
        assert f"messages[0].{name}" in response.text


async def test_a_thread_is_refused_so_that_clients_send_the_whole_conversation(served):
    response = await served.client.post("/v1/messages", json=APIS["/v1/messages"] | {"thread": {"type": "create"}})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


async def test_the_header_of_many_names_is_short(served):
    many = {f"{number}\U0001f600" * 10: 1 for number in range(100)}
    response = await post(served, "/v1/completions", **many)
    assert response.status_code == 200
    assert len(response.headers["x-ignored-fields"]) < 1030


@pytest.mark.parametrize("settings", [Settings(strict_fields=True)])
async def test_strict_fields_refuse_what_has_no_effect_and_foreign_names(served):
    for name, value in [
        ("service_tier", "flex"),
        ("use_beam_search", False),
        ("guided_regex", "a"),
        ("nvext", {"a": 1}),
    ]:
        assert "--strict-fields" in refused(await post(served, "/v1/chat/completions", **{name: value}), name)
    nested = [{"role": "user", "content": "x", "id": "m1"}]
    refused(await post(served, "/v1/chat/completions", messages=nested), "messages[].id")
    own = {"store": False, "metadata": None, "guided_json": None, "best_of": 1, "echo": False}
    assert (await post(served, "/v1/completions", **own)).status_code == 200
    assert (await post(served, "/v1/responses", metadata={"a": "b"}, store=True)).status_code == 200


COMPACT = json.dumps(SCHEMA, separators=(",", ":"))
CONSTRAINTS = [
    ({"guided_json": SCHEMA}, ("json", COMPACT, "guided_json")),
    ({"guided_regex": "a+"}, ("regex", "a+", "guided_regex")),
    ({"guided_choice": ["a", "b"]}, ("choice", ("a", "b"), "guided_choice")),
    ({"guided_grammar": "start: /a/"}, ("grammar", "start: /a/", "guided_grammar")),
    ({"regex": "a+"}, ("regex", "a+", "regex")),
    ({"ebnf": 'root ::= "a"'}, ("grammar", 'root ::= "a"', "ebnf")),
    ({"json_schema": json.dumps(SCHEMA)}, ("json", json.dumps(SCHEMA), "json_schema")),
    ({"response_format": {"type": "json_object", "value": SCHEMA}}, ("json", COMPACT, "response_format.value")),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, ("json", COMPACT, "response_format.schema")),
    ({"response_format": {"type": "json", "value": SCHEMA}}, ("json", COMPACT, "response_format.value")),
]


@pytest.mark.parametrize(("fields", "expected"), CONSTRAINTS, ids=[next(iter(fields)) for fields, _ in CONSTRAINTS])
def test_constraints_under_other_names(fields, expected):
    outputs = GenerateRequest.read({"prompt": "x", **fields}).sampling().structured_outputs
    assert (outputs.kind, getattr(outputs, outputs.kind), outputs.name) == expected
    chat = ChatCompletionRequest.read({"messages": MESSAGES, **fields}).params().structured_outputs
    assert chat == outputs
    with pytest.raises(InvalidRequestError, match="both say what the output must be"):
        GenerateRequest.read({"prompt": "x", **fields, "structured_outputs": {"regex": "a"}}).sampling()


def test_an_old_name_beside_the_new_one_is_one_constraint():
    both = {"prompt": "x", "guided_grammar": "start: /a/", "structured_outputs": {"grammar": "start: /a/"}}
    outputs = GenerateRequest.read(both).sampling().structured_outputs
    assert (outputs.grammar, outputs.name) == ("start: /a/", "structured_outputs.grammar")
    with pytest.raises(InvalidRequestError, match="both say what the output must be"):
        GenerateRequest.read({**both, "guided_grammar": "start: /b/"}).sampling()


def test_whitespace_goes_with_a_guided_schema():
    fields = {"prompt": "x", "guided_json": SCHEMA, "guided_whitespace_pattern": " ?"}
    assert GenerateRequest.read(fields).sampling().structured_outputs.whitespace_pattern == " ?"


def test_a_constraint_that_is_refused_is_called_as_it_was_sent():
    with pytest.raises(InvalidRequestError) as info:
        GenerateRequest.read({"prompt": "x", "guided_choice": "yes"}).sampling()
    assert info.value.param == "guided_choice"


def test_the_table_says_each_name_once_and_routes_know_them_all():
    assert HINTS.keys().isdisjoint(HARMLESS)
    for kind in (GenerateRequest, ChatCompletionRequest, ResponsesRequest):
        properties = kind.model_json_schema()["properties"]
        assert properties.keys() >= HINTS.keys() | HARMLESS.keys()


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_every_chunk_has_the_usage_so_far_if_asked(served, route):
    options = {"include_usage": True, "continuous_usage_stats": True}
    got = chunks(await post(served, route, stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in got]
    assert counts[-4:] == [1, 2, 3, 3]
    assert all(chunk["usage"]["prompt_tokens"] == got[-1]["usage"]["prompt_tokens"] for chunk in got)
    assert got[-1]["choices"] == []
    without = chunks(await post(served, route, stream=True, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in without[:-1]] == [None] * (len(without) - 1)
    alone = chunks(await post(served, route, stream=True, stream_options={"continuous_usage_stats": True}))
    assert not any("usage" in chunk for chunk in alone), "vLLM counts only where the usage is wanted"


async def test_token_ids_beside_the_text(served):
    ids = list(answer_text("hello", num_tokens=3).encode())
    (choice,) = (await post(served, "/v1/completions", return_token_ids=True)).json()["choices"]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == (ids, list(b"hello"))
    first, *rest = chunks(await post(served, "/v1/completions", return_token_ids=True, stream=True))
    assert first["choices"][0]["prompt_token_ids"] == list(b"hello")
    assert [chunk["choices"][0]["token_ids"] for chunk in rest] == [[token_id] for token_id in ids]
    chat = (await post(served, "/v1/chat/completions", return_token_ids=True)).json()
    assert len(chat["choices"][0]["token_ids"]) == 3
    first, *rest = chunks(await post(served, "/v1/chat/completions", return_token_ids=True, stream=True))
    assert first["prompt_token_ids"] == chat["prompt_token_ids"]
    streamed = [token_id for chunk in rest for token_id in chunk["choices"][0]["token_ids"]]
    assert streamed == chat["choices"][0]["token_ids"]


async def test_logprobs_of_tokens_under_their_ids(served):
    fields = {"logprobs": 1, "return_tokens_as_token_ids": True}
    (choice,) = (await post(served, "/v1/completions", **fields)).json()["choices"]
    ids = list(answer_text("hello", num_tokens=3).encode())
    assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in ids]


CUT = {"truncate_prompt_tokens": 2, "truncation_side": "right"}
TRUNCATED = {
    **dict.fromkeys(ROUTES, CUT) | {"/v1/messages": CUT, "/completion": {"prompt": "hello", "n_predict": 3, **CUT}},
    **{route: {"options": CUT} for route in ("/api/chat", "/api/generate")},
}


@pytest.mark.parametrize("route", TRUNCATED)
async def test_a_prompt_is_cut_at_the_named_side(served, route):
    body = ROUTES.get(route, APIS.get(route, {})) | TRUNCATED[route]
    response = await served.client.post(route, json=body)
    assert response.status_code == 200, response.text
    assert (served.engine.params[-1].truncation_side, "x-ignored-fields" in response.headers) == ("right", False)
    text = json.dumps(body).replace('"right"', '"middle"')
    response = await served.client.post(route, content=text)
    assert response.status_code == 400
    assert "truncation_side must be left or right, not 'middle'" in response.text


async def test_the_first_tokens_of_a_prompt_are_kept(served):
    answer = (await post(served, "/v1/completions", echo=True, **CUT)).json()
    assert (answer["choices"][0]["text"][:-3], answer["usage"]["prompt_tokens"]) == ("he", 2)


NAMING = "{% for m in messages %}{% if m.role == 'ipython' %}(result) {% endif %}{{ m.content }}{% endfor %}"
TURNS = [{"role": "user", "content": "1+1"}, {"role": "ipython", "content": "2"}]
SAYING = {
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": 3},
    "/v1/responses": {"input": TURNS, "max_output_tokens": 3},
    "/api/chat": {"messages": TURNS, "stream": False},
    "/tokenize": {"messages": TURNS},
    "/apply-template": {"messages": TURNS},
}


@pytest.mark.parametrize("route", SAYING)
async def test_roles_are_those_that_the_chat_template_names(served, route):
    response = await served.client.post(route, json=SAYING[route])
    assert response.status_code == 400
    assert "the chat template does not name the role 'ipython'; it must be one of system, developer" in response.text
    served.engine.tokenizer.chat_template = ChatTemplate(NAMING, special_tokens={})
    response = await served.client.post(route, json=SAYING[route])
    assert response.status_code == 200, response.text
    if route == "/apply-template":
        assert response.json()["prompt"] == "1+1(result) 2"


async def test_vllms_facts_of_the_tokenizer(served):
    """lm-evaluation-harness asks for them before it tokenizes by the server."""
    template = served.engine.tokenizer.chat_template.source
    assert (await served.client.get("/tokenizer_info")).json() == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<eos>",
        "pad_token": None,
        "unk_token": None,
        "chat_template": template,
        "model_max_length": 512,
    }
    served.engine.tokenizer.has_chat_template = False
    assert (await served.client.get("/tokenizer_info")).json()["chat_template"] is None


async def test_reasoning_that_is_not_wanted(served, settings):
    served.service.settings = Settings(reasoning_parser="think")
    served.engine.script = ["<think>", "Hm", "</think>", "Hi"]
    shown = (await post(served, "/v1/chat/completions", max_tokens=4)).json()["choices"][0]["message"]
    assert (shown["reasoning_content"], shown["content"]) == ("Hm", "Hi")
    hidden = await post(served, "/v1/chat/completions", max_tokens=4, include_reasoning=False)
    assert "reasoning_content" not in hidden.json()["choices"][0]["message"]
    assert hidden.json()["choices"][0]["message"]["content"] == "Hi"
    streamed = await post(served, "/v1/chat/completions", max_tokens=4, include_reasoning=False, stream=True)
    assert "Hm" not in streamed.text
    assert "Hi" in streamed.text
    served.engine.script = ["<think>", "Hm"]
    hidden = await post(served, "/v1/chat/completions", max_tokens=2, include_reasoning=False)
    assert hidden.json()["choices"][0]["message"]["content"] is None


async def test_a_request_id_is_the_answers_label(served):
    response = await post(served, "/v1/completions", request_id="mine")
    assert response.headers["x-request-id"] == "mine"
    response = await served.client.post(
        "/v1/completions", json=ROUTES["/v1/completions"] | {"request_id": "mine"}, headers={"X-Request-Id": "header"}
    )
    assert response.headers["x-request-id"] == "header"
    refused(await post(served, "/v1/completions", request_id="two\nlines"), "request_id")


async def test_max_completion_tokens_on_completions(served):
    response = await served.client.post("/v1/completions", json={"prompt": "x", "max_completion_tokens": 5})
    assert response.json()["usage"]["completion_tokens"] == 5


async def test_the_texts_of_tokens(served):
    answer = (await served.client.post("/tokenize", json={"prompt": "ab", "return_token_strs": True})).json()
    assert (answer["tokens"], answer["token_strs"]) == ([97, 98], ["a", "b"])


async def test_what_a_prompt_to_tokenize_ignores_is_checked_too(served):
    response = await served.client.post("/tokenize", json={"prompt": "ab", "tool_choice": True})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")


async def test_special_tokens_are_left_out_of_a_prompt(served, monkeypatch):
    prompts = []
    submit = served.engine.submit

    async def recorded(prompt, *args, **more):
        prompts.append(prompt)
        return await submit(prompt, *args, **more)

    monkeypatch.setattr(served.engine, "submit", recorded)
    for route, value in [("/generate", False), ("/v1/completions", False), ("/v1/chat/completions", True)]:
        await post(served, route, add_special_tokens=value)
    bare = {"prompt": "hello", "add_special_tokens": False}
    assert prompts[:2] == [bare, bare]
    assert isinstance(prompts[2], str)
