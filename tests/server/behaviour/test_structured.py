"""Structured output over HTTP: the real server with the demo model, asked by the openai package and by httpx."""

import asyncio
import json
import re
from typing import Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field
from serving import parse_events
from tables import table

from splitfuse.client import AsyncClient, BadRequestError

MODEL = "splitfuse-demo-5m"
PROMPT = "Here is a record as JSON:\n"
MESSAGES = [{"role": "user", "content": "Give me a record as JSON."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "record", "schema": SCHEMA, "strict": True}}


async def generate(live, **fields):
    """Wait for the result of POST /generate and return it."""
    response = await live.post("/generate", json={"prompt": PROMPT, "max_tokens": 120, "seed": 1, **fields})
    assert response.status_code == 202, response.text
    return (await live.get(response.json()["result_url"] + "?wait=60")).json()


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


async def test_chat_keeps_to_a_json_schema_streamed_or_not(sdk):
    fields = {"model": MODEL, "messages": MESSAGES, "response_format": JSON_SCHEMA, "max_tokens": 120, "seed": 4}
    plain = await sdk.chat.completions.create(**fields)
    value = json.loads(plain.choices[0].message.content)
    jsonschema.validate(value, SCHEMA)
    assert plain.choices[0].finish_reason == "stop"
    chunks = [chunk async for chunk in await sdk.chat.completions.create(**fields, stream=True)]
    assert text_of(chunks) == plain.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_completions_keep_to_a_json_schema_streamed_or_not(sdk):
    fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 120, "seed": 4, "n": 3, "temperature": 1.5}
    extra = {"response_format": JSON_SCHEMA}
    plain = await sdk.completions.create(**fields, extra_body=extra)
    for choice in plain.choices:
        jsonschema.validate(json.loads(choice.text), SCHEMA)
    assert len({choice.text for choice in plain.choices}) == 3
    texts = ["", "", ""]
    async for chunk in await sdk.completions.create(**fields, extra_body=extra, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in plain.choices]


class Pet(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["cat", "dog"]
    name: str = Field(max_length=12)


class Person(BaseModel):
    name: str
    age: int
    pets: list[Pet]
    friend: Pet | None


async def test_parse_gives_pydantic_models(sdk):
    completion = await sdk.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Person, max_tokens=400, seed=2
    )
    person = completion.choices[0].message.parsed
    assert isinstance(person, Person)
    assert person.friend is None or isinstance(person.friend, Pet)
    async with sdk.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Person, max_tokens=400, seed=2
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == person


async def test_any_object_and_plain_text(sdk):
    fields = {"model": MODEL, "messages": MESSAGES, "max_tokens": 150, "seed": 3}
    anything = await sdk.chat.completions.create(**fields, response_format={"type": "json_object"})
    assert isinstance(json.loads(anything.choices[0].message.content), dict)
    text = await sdk.chat.completions.create(**fields, response_format={"type": "text"})
    free = await sdk.chat.completions.create(**fields)
    assert text.choices[0].message.content == free.choices[0].message.content


@pytest.mark.parametrize("route", ["/generate", "/v1/completions", "/v1/chat/completions"])
async def test_every_route_takes_both_spellings(live, route):
    body = {"messages": MESSAGES} if "chat" in route else {"prompt": PROMPT}
    for fields in ({"response_format": JSON_SCHEMA}, {"structured_outputs": {"json": SCHEMA}}):
        response = await live.post(route, json={**body, **fields, "max_tokens": 120, "stream": True, "seed": 5})
        assert response.status_code == 200, response.text
        text = ""
        for event in parse_events(response.text):
            if event["data"] == "[DONE]" or event.get("event") == "done":
                continue
            choices = event["data"].get("choices", [event["data"]])
            text += choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
        jsonschema.validate(json.loads(text), SCHEMA)


async def test_the_native_kinds(live, sdk):
    assert re.fullmatch(r"[A-C]\d{3}", (await generate(live, structured_outputs={"regex": r"[A-C]\d{3}"}))["text"])
    chosen = await generate(live, structured_outputs={"choice": ["left", "right"]})
    assert chosen["text"] in ("left", "right")
    lark = 'start: "<tool_call>" call "</tool_call>"\ncall: %json ' + json.dumps(SCHEMA)
    called = (await generate(live, structured_outputs={"grammar": lark}))["text"]
    call = called.removeprefix("<tool_call>").removesuffix("</tool_call>")
    jsonschema.validate(json.loads(call), SCHEMA)
    assert isinstance(json.loads((await generate(live, structured_outputs={"json_object": True}))["text"]), dict)
    chat = await sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, extra_body={"structured_outputs": {"choice": ["blue"]}}
    )
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("blue", "stop")


async def test_our_own_client_passes_it_on(live):
    async with AsyncClient(str(live.base_url)) as own:
        result = await own.generate(PROMPT, max_tokens=120, structured_outputs={"json": SCHEMA})
        jsonschema.validate(json.loads(result.text), SCHEMA)
        result = await own.generate(PROMPT, max_tokens=120, response_format=JSON_SCHEMA)
        jsonschema.validate(json.loads(result.text), SCHEMA)
        with pytest.raises(BadRequestError, match="unclosed group"):
            await own.generate(PROMPT, structured_outputs={"regex": "("})


async def test_what_runs_out_of_tokens_is_whole_and_says_that_it_was_cut(live):
    endless = {"type": "array", "items": {"type": "integer"}}
    result = await generate(live, structured_outputs={"json": endless}, max_tokens=40, temperature=0)
    assert result["finish_reason"] == "length"
    assert len(json.loads(result["text"])) > 5


WRITTEN = [
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2, "maxItems": 3},
    {"type": "string", "pattern": r"^(?=.*[A-Z])(?!.*Z)[A-Za-z]{2,6}$"},
    {"type": "string", "format": "cuid", "pattern": r"^[cC][^\s-]{8,12}$"},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "boolean"}},
    {"enum": ["a", "b"], "not": {"const": "a"}},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "integer", "minimum": 5, "maximum": 20}]},
]


async def test_schemas_that_pydantic_and_zod_write_are_checked_where_no_grammar_enforces_them(live):
    num_checked = 0
    for schema in WRITTEN:
        for seed in range(4):
            result = await generate(live, structured_outputs={"json": schema}, seed=seed, temperature=2.0)
            output = result["outputs"][0]
            is_valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(output["text"]))
            assert is_valid == (not output.get("x_schema_errors")), output
            num_checked += "x_unenforced" in output
    assert num_checked == 16, "the others are enforced"


BAD = [
    *table(__file__, "refused"),
    ({"response_format": JSON_SCHEMA, "structured_outputs": {"regex": "a"}}, "response_format"),
    ({"structured_outputs": {"regex": "a" * 200_000}}, "structured_outputs.regex"),
]


@pytest.mark.parametrize("route", ["/generate", "/v1/completions", "/v1/chat/completions"])
async def test_what_makes_no_sense_is_named(live, route):
    body = {"messages": MESSAGES} if "chat" in route else {"prompt": PROMPT}
    for fields, param in BAD:
        response = await live.post(route, json={**body, "max_tokens": 2, **fields})
        assert response.status_code == 400, (fields, response.text)
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param), fields
        assert len(error["message"]) > 20


async def test_the_openai_package_hears_why(sdk):
    fields = {"model": MODEL, "messages": MESSAGES}
    schema = {"type": "object", "properties": {"a": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError, match="Invalid type: nothing") as info:
        await sdk.chat.completions.create(
            **fields, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        )
    assert info.value.param == "response_format.json_schema.schema"


async def test_wishes_that_leave_no_token_are_told_to_who_sent_them(live):
    fields = {"structured_outputs": {"regex": "yes"}, "allowed_token_ids": [100]}
    response = await live.post("/v1/completions", json={"prompt": PROMPT, **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("constraint_not_met", "structured_outputs.regex")
    assert "no token is left" in error["message"]
    result = await generate(live, **fields)
    assert (result["status"], result["finish_reason"]) == ("failed", "error")
    assert result["error"] == error
    streamed = await live.post("/generate", json={"prompt": PROMPT, **fields, "stream": True})
    assert parse_events(streamed.text)[-1]["data"]["error"] == error
    response = await live.post("/v1/responses", json={"input": "x", **fields, "stream": True})
    failed = parse_events(response.text)[-1]["data"]["response"]
    assert failed["error"] == {"code": "invalid_prompt", "message": error["message"]}


async def test_grammars_are_counted(live):
    async def counts():
        lines = (await live.get("/metrics")).text.splitlines()
        found = dict(re.findall(r"^splitfuse:grammar_(\w+){.*} (\S+)$", "\n".join(lines), re.MULTILINE))
        return {name: float(value) for name, value in found.items()}

    before = await counts()
    for pattern in ("counted", "counted", "counted", "(", "("):
        await live.post("/generate", json={"prompt": PROMPT, "structured_outputs": {"regex": pattern}})
    after = await counts()
    added = {name.removesuffix("_total"): after[name] - before[name] for name in after}
    assert added.pop("cache_bytes") != 0, "the new one's, less what had to go for it"
    assert added == {"cache_queries": 5, "cache_hits": 2, "refusals": 2}


async def test_different_grammars_at_once(live):
    kinds = [
        ({"regex": "[a-f]{9}"}, lambda text: re.fullmatch("[a-f]{9}", text)),
        ({"choice": ["one", "two"]}, lambda text: text in ("one", "two")),
        ({"json": SCHEMA}, lambda text: jsonschema.validate(json.loads(text), SCHEMA) is None),
        ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
        (None, lambda text: len(text) > 0),
    ]
    requests = [(kind, seed) for seed in range(6) for kind in kinds]
    results = await asyncio.gather(
        *(generate(live, structured_outputs=kind[0], seed=seed, max_tokens=90) for kind, seed in requests)
    )
    for (kind, _), result in zip(requests, results, strict=True):
        assert kind[1](result["text"]), result["text"]
