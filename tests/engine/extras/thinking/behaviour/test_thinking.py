"""Reasoning ends after its budget, however steps are taken, and the answer goes on."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engines import Collector, running_engine
from harmony_model import save_harmony_model
from published import published

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.thinking.constraint import LimitedGrammar
from splitfuse.engine.extras.thinking.limit import ThinkingLimit
from splitfuse.engine.extras.thinking.part import Thinking
from splitfuse.engine.language.chat.chat_form import ChatForm
from splitfuse.engine.language.chat.reasoning_parser import REASONING_FORMATS, ReasoningFormat

# The form of five kinds of templates: a tag in the prompt, a tag of the model's, several words, brackets.
TEMPLATES = sorted(published("conformance/templates").glob("*.jinja"))
FORMS = {
    "<think>": ReasoningFormat(openings=("<think>",), closings=("</think>",), is_open=True),
    "[THINK]": replace(REASONING_FORMATS["mistral"], is_open=True),
    "words": replace(REASONING_FORMATS["granite"], is_open=True),
    "seed": ReasoningFormat(openings=("<seed:think>",), closings=("</seed:think>",), is_open=True),
}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %} <think>{% endif %}"
SHOWN = "{% if messages[0].reasoning_content %}<think>{{ messages[0].reasoning_content }}</think>{% endif %}"
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(str(DEMO_FOLDER), device="cpu", dtype="float32", chat_template=SHOWN + TEMPLATE, thinking_message=" Ok.")


def texts(llm: LLM, prompt: Any = PROMPT, **fields: Any) -> list[str]:
    params = SamplingParams(**{"max_tokens": 40, "temperature": 0, "ignore_eos": True, **fields})
    return [output.text for output in llm.generate(prompt, params)[0].outputs]


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_the_closing_comes_after_the_budget_and_the_answer_goes_on(llm: LLM, kind: str, budget: int) -> None:
    form = FORMS[kind]
    free = texts(llm, reasoning_format=form)[0]
    (limited,) = texts(llm, reasoning_format=form, thinking_budget=budget)
    thoughts, closing, answer = limited.partition(f" Ok.{form.closings[0]}")
    assert free.startswith(thoughts)
    assert len(llm.tokenizer.encode(thoughts, add_special_tokens=False)) == budget  # type: ignore[union-attr]
    assert closing
    assert len(answer) > 10


def test_the_answer_behind_a_closing_is_as_if_the_prompt_had_it(llm: LLM) -> None:
    (limited,) = llm.generate(PROMPT, SamplingParams(max_tokens=40, temperature=0, thinking_budget=3, **_open()))
    ids = limited.outputs[0].token_ids
    at = len(ids) - 10
    (rest,) = llm.generate(
        {"prompt_token_ids": [*limited.prompt_token_ids, *ids[:at]]}, SamplingParams(max_tokens=10, temperature=0)
    )
    assert list(rest.outputs[0].token_ids) == list(ids[at:])


def _open() -> dict[str, Any]:
    return {"reasoning_format": FORMS["<think>"]}


def test_prompts_that_open_reasoning_are_limited_and_others_are_not(llm: LLM) -> None:
    chat = llm.chat(PROMPT, SamplingParams(max_tokens=12, temperature=0, thinking_budget=2))[0].outputs[0].text
    assert " Ok.</think>" in chat
    assert "</think>" not in texts(llm, thinking_budget=0)[0]


def test_each_of_several_outputs_has_the_budget(llm: LLM) -> None:
    several = texts(llm, n=3, temperature=1.0, seed=3, thinking_budget=5, **_open())
    assert len(set(several)) == 3
    assert all(" Ok.</think>" in text for text in several)
    assert several[0] == texts(llm, temperature=1.0, seed=3, thinking_budget=5, **_open())[0]


def test_a_stop_string_and_the_most_tokens_end_it_within_a_closing(llm: LLM) -> None:
    assert texts(llm, thinking_budget=0, stop=["thin"], **_open()) == [" Ok.</"]
    assert (
        len(llm.generate(PROMPT, SamplingParams(max_tokens=2, thinking_budget=0, **_open()))[0].outputs[0].token_ids)
        == 2
    )


@pytest.mark.parametrize("budget", [0, 3])
def test_channels_close_and_do_not_open_again(tmp_path: Path, budget: int) -> None:
    save_harmony_model(tmp_path)
    llm = LLM(str(tmp_path), device="cpu", dtype="float32")
    assert llm.tokenizer is not None
    ids = partial(llm.tokenizer.encode, add_special_tokens=False)
    limit = llm.run(_limit(llm, ids("<|start|>assistant"), SamplingParams(thinking_budget=budget)))
    sampled = [*ids("<|channel|>analysis<|message|>"), *ids("h" * 30), *ids("<|channel|>analysis<|message|>Hi")]
    state = limit.begin()
    taken = [state.take(token_id) for token_id in sampled]
    whole = llm.tokenizer.decode(taken, skip_special_tokens=False)
    assert whole.startswith(
        "<|channel|>final" if not budget else "<|channel|>analysis<|message|>hhh<|end|><|start|>assis"
    )
    assert whole.count("analysis") == min(budget, 1)
    again = limit.begin()
    again.follow([1, *taken], num_prompt_tokens=1)
    assert again._places == state._places


@pytest.mark.parametrize("drafter", [{"method": "ngram", "num_speculative_tokens": 3}, {"method": "suffix"}], ids=str)
def test_drafts_change_nothing(llm: LLM, drafter: dict[str, Any]) -> None:
    drafting = LLM(str(DEMO_FOLDER), device="cpu", dtype="float32", thinking_message=" Ok.", speculative_config=drafter)
    for fields in ({"thinking_budget": 4}, {"thinking_budget": 0, "temperature": 0.8, "seed": 5, "n": 2}):
        assert texts(drafting, **fields, **_open()) == texts(llm, **fields, **_open())
    assert drafting.engine.core.speculation.to_dict()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_published_templates_close_in_their_own_form(llm: LLM, path: Path) -> None:
    """The limit writes what the template's own reader takes for a closing."""
    try:
        form = ChatForm.derive(path.read_text())
    except ConfigError:
        pytest.skip("its form cannot be derived")
    if form.reasoning is None:
        pytest.skip("it shows no reasoning")
    assert llm.tokenizer is not None
    ids = partial(llm.tokenizer.encode, add_special_tokens=False)
    reasoning = replace(form.reasoning, is_open=form.begins_open)
    fields: dict[str, Any] = {"num_tokens": 2, "vocab_size": 4096}
    limit = ThinkingLimit.of(reasoning, ids("Hi"), message="", tokenizer=llm.tokenizer, **fields)
    state = LimitedGrammar(limit, None).begin()
    opening = () if form.begins_open else ids(form.reasoning.openings[0])
    taken = [state.take(token_id) for token_id in [*opening, *ids(" one two"), *ids(" a" * 40)]]
    answer = form.read(llm.tokenizer.decode(taken))
    assert answer.reasoning == "one two"
    assert answer.content.endswith("a a a")


async def _limit(llm: LLM, prompt: list[int], params: SamplingParams) -> Any:
    tokenized = await llm.engine.prompts.tokenize({"prompt_token_ids": prompt}, params, is_new=False)
    for part in llm.engine.extensions:
        tokenized = await part.constrained(tokenized, llm.engine.prompts)
    return tokenized.grammar


def test_stopped_thinking_is_equal_to_a_budget_of_as_many_tokens() -> None:
    async def work() -> None:
        async with running_engine(str(DEMO_FOLDER)) as engine:
            part = engine.part(Thinking)
            assert part is not None
            params = SamplingParams(max_tokens=300, seed=7, **_open())
            collector = Collector()
            await engine.submit(PROMPT, params, collector, request_id="a")
            await collector.until(3)
            recorded: list[int] = []

            async def record(num_tokens: int) -> None:
                recorded.append(num_tokens)

            count = await part.stop(engine, "a", record=record)
            assert count is not None
            assert recorded == [count]
            assert 3 <= count < 290
            await collector.ended.wait()
            other = Collector()
            await engine.submit(PROMPT, replace(params, thinking_budget=count), other)
            await other.ended.wait()
            ids = [[i for delta in sink.deltas for i in delta.token_ids] for sink in (collector, other)]
            assert ids[0] == ids[1]
            assert "</think>" in "".join(delta.text for delta in collector.deltas)
            assert await part.stop(engine, "a", record=record) is None

    asyncio.run(work())
