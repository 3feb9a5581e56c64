"""A request resumed from the tokens of another process ends as it would have there: tokens, and logprobs to the bit."""

from collections import defaultdict
from typing import Any

import pytest

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.core.outputs import KnownOutput, OutputDelta
from splitfuse.engine.language.chat.reasoning_parser import ReasoningFormat
from splitfuse.engine.serving.request_output import CompletionOutput
from splitfuse.engine.serving.submitted_request import Resumed

pytestmark = pytest.mark.sampled(6)

PROMPT = "Once upon a time there was a"
SEED = 4711
SCHEMA = {
    "type": "array",
    "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}

OPEN = ReasoningFormat(openings=("<think>",), closings=("</think>",), is_open=True)

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"top_p": 0.9, "top_k": 50},
    "several outputs": {"n": 3},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "stop strings": {"stop": ["day", ". "], "min_tokens": 9, "include_stop_str_in_output": True},
    "logprobs": {"logprobs": 3, "prompt_logprobs": 2, "n": 2},
    "bad words": {"bad_words": ["the", "little"], "temperature": 0},
    "schema": {"structured_outputs": {"json": {"type": "object", "properties": {"age": {"type": "integer"}}}}},
    "forced completion": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 60},
    "schema without forced completion": {"structured_outputs": {"json": SCHEMA}, "bad_words": ["a"], "max_tokens": 60},
    "regex": {"structured_outputs": {"regex": "([A-Z][a-z]{1,7} ){3,9}"}},
    "thinking": {"thinking_budget": 5, "reasoning_format": OPEN, "n": 2, "logprobs": 1},
    "thinking before JSON": {
        "thinking_budget": 3,
        "reasoning_format": OPEN,
        "structured_outputs": {
            "grammar": 'start: /[^<]*<\\/think>/ %json {"type": "array", "items": {"enum": [1, 2]}}'
        },
    },
}


DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "float32"},
    "drafts": {"dtype": "float32", "speculative_config": DRAFTS},
    "bfloat16": {"dtype": "bfloat16", "kv_cache_dtype": "int8", "quantization": "int4"},
}


@pytest.fixture(scope="module", params=SETTINGS)
def llm(request: pytest.FixtureRequest) -> LLM:
    return LLM(str(DEMO_FOLDER), device="cpu", max_num_seqs=128, **SETTINGS[request.param])


def run(llm: LLM, params: SamplingParams, resumed: dict[str, Resumed | None]) -> dict[str, list[OutputDelta]]:
    """Return the deltas of one request per name."""
    tokenized = llm.run(llm.engine.prompts.tokenize(PROMPT, params, is_new=False))
    for part in llm.engine.extensions:
        tokenized = llm.run(part.constrained(tokenized, llm.engine.prompts))
    for name, resumption in resumed.items():
        llm.engine.core.add(llm.engine._input_processor.requests(name, tokenized, now=0.0, resumed=resumption))
    deltas = defaultdict(list)
    while llm.engine.pipeline.has_work:
        for delta in llm.engine.pipeline.step().deltas:
            deltas[delta.request_id].append(delta)
    return deltas


def outputs_of(deltas: list[OutputDelta], num_outputs: int) -> list[CompletionOutput]:
    outputs = [CompletionOutput(index) for index in range(num_outputs)]
    for delta in deltas:
        outputs[delta.index].add(delta)
    return outputs


def known_of(deltas: list[OutputDelta], num_outputs: int) -> Resumed:
    outputs = outputs_of(deltas, num_outputs)
    starts = {delta.index: delta.forced_from for delta in deltas}
    known = [
        KnownOutput(tuple(output.token_ids), starts.get(output.index), 0.0, 0.0, output.finish_reason is not None)
        for output in outputs
    ]
    return Resumed(SEED, tuple(known), 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_after_any_event_it_goes_on_to_the_same_end(llm: LLM, kind: str) -> None:
    params = SamplingParams(**{"max_tokens": 24, "seed": SEED, **KINDS[kind]})
    whole = run(llm, params, {"whole": None})["whole"]
    cuts = {str(count): known_of(whole[:count], params.n) for count in range(len(whole))}
    assert len(cuts) >= 3
    ends = run(llm, params, dict(cuts))
    expected = outputs_of(whole, params.n)
    for name, deltas in ends.items():
        delivered = whole[: int(name)]
        for output, other in zip(outputs_of(delivered + deltas, params.n), expected, strict=True):
            assert output.token_ids == other.token_ids, f"cut after {name} events"
            assert (output.text, output.finish_reason, output.stop_reason) == (
                other.text,
                other.finish_reason,
                other.stop_reason,
            )
            assert output.logprobs == other.logprobs
        assert sum(delta.prompt_logprobs is not None for delta in delivered + deltas) == (
            params.prompt_logprobs is not None
        )
    assert kind != "forced completion" or any(delta.forced_from for delta in whole), "the completion is forced"
    assert "thinking" not in kind or all("</think>" in output.text for output in expected)


def test_its_times_are_those_of_its_first_arrival(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4)
    known = KnownOutput((420,), first_token_time=-50.0, last_token_time=1.0)
    (*_, last) = run(llm, params, {"r": Resumed(SEED, (known,), -60.0)})["r"]
    assert last.metrics is not None
    assert (last.metrics.arrival_time, last.metrics.first_token_time) == (-60.0, -50.0)
    assert last.metrics.num_output_tokens == 4
