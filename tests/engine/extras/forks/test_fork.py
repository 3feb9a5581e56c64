"""LLM.fork continues an output from any token: without a change the rest is equal, with one it is a new prompt's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tiny_adapters import random_adapter, save_adapter
from tiny_models import make_model, save_model

from splitfuse.engine import LLM, LoRARequest, RequestOutput
from splitfuse.engine.errors import InvalidRequestError

SAMPLED = {"max_tokens": 24, "seed": 7, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", device="cpu", dtype="float32", max_model_len=256, num_kv_blocks=64) as llm:
        yield llm


def answered(llm: LLM, **fields: Any) -> RequestOutput:
    [output] = llm.generate("Once upon a time", **SAMPLED | fields)
    return output


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"seed": None, "temperature": 0.7},
        {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"n": 3},
        {"stop": [f"{letter}zz" for letter in "adehlnorst .,"], "min_tokens": 20},  # none is held back before the 20th
        {"structured_outputs": {"regex": "[a-z ]{30,60}"}, "ignore_eos": False},
    ],
    ids=lambda fields: "+".join(fields) or "plain",
)
def test_without_a_change_the_rest_is_the_same(fields: dict[str, Any], llm: LLM) -> None:
    parent = answered(llm, **fields)
    for output in parent.outputs:
        num_tokens = len(output.token_ids)
        for at in (0, 1, num_tokens // 2, num_tokens - 1, num_tokens, None):
            fork = llm.fork(parent, index=output.index, at=at)
            [own] = fork.outputs
            assert own.token_ids == output.token_ids, at
            assert (own.text, own.finish_reason, own.stop_reason) == (
                output.text, output.finish_reason, output.stop_reason
            )  # fmt: skip
            assert (fork.prompt, fork.prompt_token_ids) == (parent.prompt, parent.prompt_token_ids)


def test_a_forced_completion_is_the_same_from_within(llm: LLM) -> None:
    names = {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "n": {"type": "integer"},
    }
    schema = {"type": "object", "properties": names, "required": [*names]}
    num_forced = 0
    for seed in range(6):
        parent = answered(llm, seed=seed, temperature=1.5, structured_outputs={"json": schema}, ignore_eos=False)
        [output] = parent.outputs
        num_forced += output.forced_from is not None
        for at in range(output.forced_from or 0, len(output.token_ids)):
            assert llm.fork(parent, at=at).outputs[0].token_ids == output.token_ids, (seed, at)
    assert num_forced > 1


def test_changes_hold_from_the_fork_on(llm: LLM) -> None:
    parent = answered(llm)
    [output] = parent.outputs
    greedy = llm.fork(parent, at=10, temperature=0, max_tokens=14)
    [rest] = llm.generate(
        [parent.prompt_token_ids + output.token_ids[:10]], temperature=0, max_tokens=4, ignore_eos=True
    )
    assert greedy.outputs[0].token_ids == output.token_ids[:10] + rest.outputs[0].token_ids
    other = llm.fork(parent, at=10, seed=8)
    assert other.outputs[0].token_ids[:10] == output.token_ids[:10]
    assert other.outputs[0].token_ids != output.token_ids
    appended = llm.get_tokenizer().encode(" a little dog", add_special_tokens=False)
    by_text = llm.fork(parent, at=5, append_text=" a little dog")
    assert by_text.outputs[0].token_ids == llm.fork(parent, at=5, append_token_ids=appended).outputs[0].token_ids
    assert by_text.outputs[0].text.startswith(llm.get_tokenizer().decode(output.token_ids[:5] + appended))
    again = llm.fork(by_text, at=12)
    assert again.outputs[0].token_ids == by_text.outputs[0].token_ids


def test_a_streams_output_is_forked(llm: LLM) -> None:
    stream = llm.generate_stream("Once upon a time", **SAMPLED)
    num_seen = 0
    for num_seen, _ in enumerate(stream, 1):
        if num_seen == 3:
            with pytest.raises(InvalidRequestError, match="once it has ended"):
                llm.fork(stream.outputs[0], at=1)
    assert num_seen == SAMPLED["max_tokens"]
    assert llm.fork(stream.outputs[0], at=4).outputs[0].token_ids == stream.outputs[0].outputs[0].token_ids


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"at": 25}, "at is 0 to 24"),
        ({"at": -1}, "at is 0 to 24"),
        ({"index": 1}, "once it has ended"),
        ({"append_token_ids": [10**6]}, "outside the vocabulary"),
        ({"append_token_ids": [1], "append_text": "x"}, "not both"),
        ({"max_tokens": 20}, "larger max_tokens"),
        ({"temprature": 0}, "temperature"),
    ],
)
def test_a_wrong_change_is_refused_by_name(change: dict[str, Any], text: str, llm: LLM) -> None:
    parent = answered(llm)
    with pytest.raises(InvalidRequestError, match=text):
        llm.fork(parent, **change)
    assert llm.engine.core.num_unfinished == 0


def test_an_answer_of_other_weights_is_not_forked(tmp_path: Path) -> None:
    save_model("llama-gqa-tied", tmp_path)
    with LLM(str(tmp_path), device="cpu", dtype="float32", max_model_len=64, num_kv_blocks=8) as llm:
        parent = answered(llm)
        llm.update_weights(load_file(tmp_path / "model.safetensors").items())
        with pytest.raises(InvalidRequestError, match="weights have changed"):
            llm.fork(parent, at=4)


def test_an_adapters_answer_goes_on_with_it_or_with_another(tmp_path: Path) -> None:
    save_model("llama-gqa-tied", tmp_path / "model")
    requests = []
    for number, name in enumerate("ab"):
        save_adapter(tmp_path / name, random_adapter(make_model("llama-gqa-tied"), seed=number))
        requests.append(LoRARequest(name, 1, str(tmp_path / name)))
    settings = {"device": "cpu", "dtype": "float32", "max_model_len": 64, "num_kv_blocks": 16, "enable_lora": True}
    with LLM(str(tmp_path / "model"), **settings) as llm:
        of_a, of_b = (answered(llm, temperature=0, lora_request=request) for request in requests)
        tokens_of_a, tokens_of_b = of_a.outputs[0].token_ids, of_b.outputs[0].token_ids
        assert tokens_of_a != tokens_of_b
        assert llm.fork(of_a, at=5).outputs[0].token_ids == tokens_of_a
        assert llm.fork(of_a, at=0, lora_request=requests[1]).outputs[0].token_ids == tokens_of_b
