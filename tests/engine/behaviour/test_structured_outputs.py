"""Structured output through LLM: outputs fit their constraint; unusable constraints are refused in time."""

import json
import os
import random
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from random_schemas import random_schema
from shared_cores import CpuWait
from tables import table

from splitfuse.engine import LLM, SamplingParams, StructuredOutputs
from splitfuse.engine.errors import ConstraintError, InvalidRequestError, UnavailableError
from splitfuse.engine.language.structured_output.compiler import MAX_GRAMMARS
from splitfuse.engine.serving.request_output import CompletionOutput

# 150 schemas take 7 s of processor time.
NUM_SCHEMAS = int(os.environ.get("SPLITFUSE_TEST_SCHEMAS", "80"))
PROMPT = "Here is a record as JSON:\n"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["kind", "old"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
ENDLESS = {"type": "array", "items": {"type": "integer"}, "minItems": 2}


@pytest.fixture(scope="module")
def demo() -> LLM:
    return LLM(dtype="float32", max_num_seqs=32)


@cache
def drafting() -> LLM:
    return LLM(dtype="float32", max_num_seqs=32, speculative_config={"method": "ngram", "num_speculative_tokens": 4})


def generate(llm: LLM, prompt: object = PROMPT, **fields: Any) -> CompletionOutput:
    """Generate one output with fields of SamplingParams and of StructuredOutputs."""
    own = {name: fields.pop(name) for name in ("json", "json_object", "regex", "choice", "grammar") if name in fields}
    params = SamplingParams(structured_outputs=StructuredOutputs(**own), **{"seed": 1, "max_tokens": 200, **fields})
    return llm.generate(prompt, params)[0].outputs[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("bounded", [True, False])
def test_random_schemas_are_satisfied(demo: LLM, bounded: bool, temperature: float) -> None:
    """Nest up to 4 deep. Values without a longest form are completed in time, other values end by themselves."""
    rng = random.Random(f"{bounded}{temperature}")
    schemas = [random_schema(rng, bounded=bounded) for _ in range(NUM_SCHEMAS // 4)]
    params = [
        SamplingParams(
            structured_outputs=StructuredOutputs(json=schema), max_tokens=400, temperature=temperature, seed=seed
        )
        for seed, schema in enumerate(schemas)
    ]
    outputs = [output.outputs[0] for output in demo.generate([PROMPT] * len(schemas), params)]
    for schema, output in zip(schemas, outputs, strict=True):
        jsonschema.validate(json.loads(output.text), schema)
        assert "  " not in re.sub(r'"(\\.|[^"\\])*"', "", output.text), "at most one space between tokens"
    num_ended = sum(output.finish_reason == "stop" for output in outputs)
    assert num_ended > len(outputs) * (0.97 if bounded else 0.85)  # a string may have any number of characters


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("schema", "most"),
    [
        ({"type": "integer"}, 20),
        ({"type": "number"}, 20),
        ("true", 20),
        ({"items": {"type": "number"}, "type": "array", "minItems": 2, "maxItems": 2}, 20),
        ({"type": "string", "minLength": 80, "maxLength": 90}, 90),
        ({"const": 10**30}, 31),
    ],
)
def test_a_number_ends(demo: LLM, schema: Any, most: int) -> None:
    """A model that repeats a digit wrote one number until its tokens were used up. Strings may have any digits."""
    digits = {demo.tokenizer.encode(digit, add_special_tokens=False)[0]: 100.0 for digit in "123"}
    for llm in (demo, drafting()):
        output = generate(llm, json=schema, logit_bias=digits, temperature=0)
        assert output.finish_reason == "stop"
        json.loads(output.text)
        assert most // 2 <= max(map(len, re.findall("[0-9]+", output.text))) <= most


def test_options_of_the_compiler_are_no_clients(demo: LLM) -> None:
    options = {"key_separator": "=>", "item_separator": ";", "whitespace_pattern": "x", "lenient": True}
    assert json.loads(generate(demo, json={**PERSON, "x-guidance": options}).text).keys() >= {"name", "age"}
    both = {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 5}], "x-guidance": {"coerce_one_of": True}}
    assert isinstance(json.loads(generate(demo, json=both).text), str)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("schema", [ENDLESS, {"type": "object"}, {"type": "string", "minLength": 9}, PERSON])
@pytest.mark.parametrize("max_tokens", [24, 40, 111])
def test_what_runs_out_of_tokens_still_ends_as_it_must(demo: LLM, schema: dict[str, Any], max_tokens: int) -> None:
    for seed in range(4):
        temperature = 0.0 if schema is ENDLESS else 2.0  # at 0 the model counts forever
        output = generate(demo, json=schema, max_tokens=max_tokens, seed=seed, temperature=temperature)
        jsonschema.validate(json.loads(output.text), schema)
        assert len(output.token_ids) <= max_tokens
        assert output.finish_reason in ("stop", "length")
        if schema is ENDLESS:
            assert output.finish_reason == "length", "it was cut short, and that is its reason"
            assert len(output.token_ids) > max_tokens - 8, "not before it had to"


def test_too_few_tokens_cut_the_output(demo: LLM) -> None:
    output = generate(demo, json=PERSON, max_tokens=4)
    assert (output.finish_reason, len(output.token_ids)) == ("length", 4)
    assert output.text.startswith('{"name":')


def test_every_kind_of_constraint(demo: LLM) -> None:
    assert re.fullmatch(r"[A-Z]{2}-\d{3,5}", generate(demo, regex=r"[A-Z]{2}-\d{3,5}").text)
    choices = ["yes", "yes, but", "no\n", '"é"', "日本"]
    assert {generate(demo, choice=choices, seed=seed, temperature=5.0).text for seed in range(60)} == set(choices)
    assert isinstance(json.loads(generate(demo, json_object=True).text), dict)
    assert json.loads(generate(demo, json=json.dumps(PERSON)).text)["age"] >= 0
    lark = 'start: "<call>" body ("|" body)* "</call>"\nbody: %json ' + json.dumps(
        PERSON | {"additionalProperties": False}
    )
    text = generate(demo, grammar=lark, max_tokens=400).text
    calls = text.removeprefix("<call>").removesuffix("</call>").split("|")
    assert all(set(json.loads(call)) >= {"name", "age"} for call in calls)
    gbnf = 'root ::= greeting " " name\ngreeting ::= "Hello" | "Bye"\nname ::= [A-Z] [a-z]+'
    assert re.fullmatch("(Hello|Bye) [A-Z][a-z]+", generate(demo, grammar=gbnf, max_tokens=12).text)


def test_whitespace_is_one_space_or_none_or_what_is_asked_for(demo: LLM) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3}
    value = re.compile("true|false")

    def spellings(**options: Any) -> set[str]:
        outputs = StructuredOutputs(json=schema, **options)
        params = [
            SamplingParams(structured_outputs=outputs, temperature=9.0, seed=seed, max_tokens=60) for seed in range(25)
        ]
        return {value.sub("b", output.outputs[0].text) for output in demo.generate([PROMPT] * 25, params)}

    assert spellings() == {f"[b,{one}b,{two}b]" for one in ("", " ") for two in ("", " ")}
    assert spellings(disable_any_whitespace=True) == {"[b,b,b]"}
    asked = spellings(whitespace_pattern=r"\n{0,2}")
    assert len(asked) > 8
    assert all(re.fullmatch(r"\[\n{0,2}b\n{0,2},\n{0,2}b\n{0,2},\n{0,2}b\n{0,2}\]", text) for text in asked)


def test_only_the_end_of_the_grammar_ends_the_output(demo: LLM) -> None:
    assert generate(demo, regex="[0-9]{3}", ignore_eos=True, max_tokens=20).finish_reason == "stop"
    endless = generate(demo, regex="[0-9]+", ignore_eos=True, max_tokens=20)
    assert (endless.finish_reason, len(endless.token_ids)) == ("length", 20)
    assert endless.text.isdigit()
    early = generate(demo, regex="a|ab", min_tokens=5)
    assert early.text in ("a", "ab"), "a grammar that has ended does not wait for min_tokens"
    longer = [
        len(generate(demo, regex="[a-z]+", min_tokens=9, seed=seed, max_tokens=40).token_ids) for seed in range(8)
    ]
    assert min(longer) > 9
    stopped = generate(demo, regex="[a-z ]{50,}", stop=["e"])
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", "e")
    shown = generate(demo, regex="[a-z]{2}x", include_stop_str_in_output=True)
    assert re.fullmatch("[a-z]{2}x", shown.text)


def test_other_parameters_hold_beside_the_grammar(demo: LLM) -> None:
    assert demo.tokenizer is not None
    ids = {text: demo.tokenizer.encode(text, add_special_tokens=False) for text in ("yes", "no", "b", "c")}
    biased = generate(demo, regex="yes|no", logit_bias={ids["b"][0]: 100.0}, repetition_penalty=2.0)
    assert biased.text in ("yes", "no"), "no bias brings in what the grammar rules out"
    assert generate(demo, regex="yes|no", bad_words=["yes"], temperature=0).text == "no"
    only = generate(demo, regex="[a-z]{5}", allowed_token_ids=[ids["b"][0], ids["c"][0]], repetition_penalty=1e-3)
    assert re.fullmatch("[bc]{5}", only.text)
    with_logprobs = generate(demo, regex="[0-9]{4}", logprobs=3)
    assert with_logprobs.logprobs is not None
    assert [item.token_id for item in with_logprobs.logprobs] == with_logprobs.token_ids
    assert all(item.logprob <= 0 for item in with_logprobs.logprobs)


@pytest.mark.parametrize(
    "fields",
    [{"allowed_token_ids": [100, 200]}, {"bad_words": ["yes"]}, {"allowed_token_ids": [100], "ignore_eos": True}],
)
def test_parameters_that_leave_no_token_are_an_error_that_names_them(demo: LLM, fields: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError, match="no token is left that it and allowed_token_ids, bad_words") as info:
        generate(demo, regex="yes", **fields)
    assert info.value.param == "structured_outputs.regex"
    assert demo.engine.core.blocks.device.num_used_blocks == 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    *table(__file__, "refused"),
    ({"regex": "b" * 50_000 + "("}, "unclosed group"),
    ({"json": "[" * 5000}, "not valid JSON"),
    ({"grammar": "root ::= " + "(" * 5000}, "RecursionError"),
    ({"grammar": 'root ::= "' + "a" * 20_000 + '"'}, "at most 16384 characters"),
]
# Constraints that would hang, crash or fill the memory of the process that compiles them.
EVIL: list[dict[str, Any]] = [
    {"grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(6000)) + '\nr6000: "a"'},
    {
        "json": {
            "$ref": "#/$defs/0",
            "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(3000)} | {"3000": {}},
        }
    },
    {"json": {"allOf": [{"type": "string", "pattern": f"a{i}"} for i in range(3000)]}},
    {"json": {"type": "integer", "multipleOf": 999983}},
    {"regex": "(?i)" + r"\p{L}*" * 5000},
    {"regex": "a{1000000}"},
    {"json": {"const": "x" * 60_000}},
    {"grammar": "start: " + "|".join(['"a"'] * 25_000)},
    {"json": {"type": "object", "properties": {f"key {i}": {"type": "integer"} for i in range(2500)}}},
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_is_broken_is_refused_with_the_reason(demo: LLM, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError) as info:
        generate(demo, **fields)
    name = f"structured_outputs.{next(iter(fields))}"
    assert info.value.param == name
    assert str(info.value).startswith(f"{name} cannot be used: ")
    assert reason in str(info.value)
    assert len(str(info.value)) < 500


@pytest.mark.sampled(3)  # tests/server/behaviour/test_evil_grammars.py has others of them a run
@pytest.mark.parametrize("fields", EVIL, ids=range(len(EVIL)))
def test_what_is_evil_is_refused_in_time(demo: LLM, fields: dict[str, Any]) -> None:
    generate(demo, regex="a")  # starts the sandbox
    with CpuWait() as cpu_wait:
        start = time.monotonic()
        with pytest.raises((InvalidRequestError, UnavailableError), match=r"cannot be used: |is too busy to") as info:
            generate(demo, **fields)
        factor = cpu_wait.factor
        assert time.monotonic() - start < 2 * factor
        # Among test processes, too, the niced sandbox may get hardly any time: alone it must have had it.
        assert isinstance(info.value, InvalidRequestError) or factor > 2, "it had its time"
    assert generate(demo, regex="abc").text == "abc", "the next one is served"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *table(__file__, "no sense"),
        ({"regex": "\ud800"}, "structured_outputs.regex"),
        ({"regex": "a" * 131_073}, "structured_outputs.regex"),
        ({"choice": ["x"] * 1025}, "structured_outputs.choice"),
    ],
)
def test_fields_that_make_no_sense_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as info:
        SamplingParams.from_fields({"structured_outputs": fields})
    assert info.value.param == param


def test_what_has_been_compiled_is_kept_within_bounds(demo: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = demo.engine._input_processor._grammars
    assert compiler is not None
    first = compiler.compile(StructuredOutputs(regex="first"))
    assert compiler.compile(StructuredOutputs(regex="first")) is first
    monkeypatch.setattr("splitfuse.engine.language.structured_output.compiler.MAX_GRAMMARS", 5)
    for number in range(9):
        compiler.compile(StructuredOutputs(regex=f"number {number}")).result()
        compiler.compile(StructuredOutputs(regex="first"))  # recently used, so it stays
    assert len(compiler._cache) <= 5
    assert compiler.compile(StructuredOutputs(regex="first")) is first
    monkeypatch.setattr("splitfuse.engine.language.structured_output.compiler.MAX_GRAMMARS", MAX_GRAMMARS)
    monkeypatch.setattr("splitfuse.engine.language.structured_output.compiler.MAX_BYTES", 1)
    compiler.compile(StructuredOutputs(regex="last")).result()
    assert not compiler._cache
    assert compiler._num_bytes == 0


def test_a_model_without_tokenizer_is_an_error_that_names_it(tiny_folder: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(Path(tiny_folder, "config.json").read_bytes())
    llm = LLM(str(tmp_path), dtype="float32", load_format="dummy")
    with pytest.raises(InvalidRequestError, match=r"structured_outputs needs a tokenizer.*tokenizer\.json"):
        generate(llm, [5, 6], json_object=True)
