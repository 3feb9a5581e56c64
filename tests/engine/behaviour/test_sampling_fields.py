"""Sampling fields keep their promises through the whole engine, on the demo model."""

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.serving.input_processor import InputProcessor
from splitfuse.engine.serving.request_output import CompletionOutput

PROMPT = "Once upon a time there was a little"
END = 0  # <|endoftext|>; <|end|> is 5


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", max_model_len=512)


def greedy(llm: LLM, *prompts: object, **fields: object) -> list[CompletionOutput]:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 48, "ignore_eos": True, **fields})  # type: ignore[arg-type]
    return [output.outputs[0] for output in llm.generate(list(prompts) or [PROMPT], params)]  # type: ignore[arg-type]


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_end_the_text_wherever_tokens_end(llm: LLM, include: bool) -> None:
    (plain,) = greedy(llm)
    rng = random.Random(3)
    starts = [rng.randrange(0, len(plain.text) - 8) for _ in range(40)]
    stops = [plain.text[start : start + rng.randint(1, 8)] for start in starts]
    params = [
        SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, stop=[stop], include_stop_str_in_output=include)
        for stop in stops
    ]
    for output, stop in zip(llm.generate([PROMPT] * len(stops), params), stops, strict=True):
        (stopped,) = output.outputs
        end = plain.text.index(stop) + (len(stop) if include else 0)
        assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == (plain.text[:end], "stop", stop)
        assert stopped.token_ids == plain.token_ids[: len(stopped.token_ids)]


def test_a_stop_string_in_the_prompt_does_not_count(llm: LLM) -> None:
    (plain,) = greedy(llm)
    assert " time" not in plain.text
    assert greedy(llm, stop="time there")[0].text == plain.text


def test_stop_token_ids(llm: LLM) -> None:
    (plain,) = greedy(llm)
    token = plain.token_ids[7]
    index = plain.token_ids.index(token)
    (stopped,) = greedy(llm, stop_token_ids=[token])
    assert (stopped.token_ids, stopped.stop_reason) == (plain.token_ids[: index + 1], token)
    assert plain.text.startswith(stopped.text)
    (included,) = greedy(llm, stop_token_ids=[token], include_stop_str_in_output=True)
    assert llm.tokenizer is not None
    assert included.text == stopped.text + llm.tokenizer.decode([token])
    (later,) = greedy(llm, stop_token_ids=[token], min_tokens=index + 2)
    assert later.token_ids[: index + 1] != stopped.token_ids, "before min_tokens it is not even sampled"
    assert len(later.token_ids) >= index + 2


def test_the_models_end_token(llm: LLM) -> None:
    fields = {"logit_bias": {END: 100}, "max_tokens": 6}
    (ended,) = greedy(llm, **fields, ignore_eos=False)
    assert (ended.token_ids, ended.text, ended.finish_reason, ended.stop_reason) == ([END], "", "stop", None)
    (ignored,) = greedy(llm, **fields)
    assert (ignored.token_ids, ignored.finish_reason) == ([END] * 6, "length")
    assert ignored.text == ""
    assert greedy(llm, **fields, skip_special_tokens=False)[0].text == "<|endoftext|>" * 6
    (later,) = greedy(llm, **fields, ignore_eos=False, min_tokens=4)
    assert later.token_ids.index(END) == 4
    assert later.finish_reason == "stop"


def test_truncate_prompt_tokens_keeps_one_end(llm: LLM) -> None:
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode(PROMPT)
    for count in (1, 3, len(ids), len(ids) + 5):
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, truncate_prompt_tokens=count)
        (output,) = llm.generate(PROMPT, params)
        assert output.prompt_token_ids == ids[-count:]
        assert output.outputs[0].token_ids == greedy(llm, ids[-count:], max_tokens=8)[0].token_ids
        (output,) = llm.generate(PROMPT, replace(params, truncation_side="right"))
        assert output.prompt_token_ids == ids[:count]
    long = SamplingParams(max_tokens=4, truncate_prompt_tokens=100)
    assert len(llm.generate("word " * 5000, long)[0].prompt_token_ids) == 100


def test_bad_words_never_come_whole(llm: LLM) -> None:
    assert llm.tokenizer is not None
    (plain,) = greedy(llm, max_tokens=120)
    words = plain.text.split(" ")[1:-1]
    phrases = list(dict.fromkeys(" ".join(pair) for pair in itertools.pairwise(words)))
    params = [SamplingParams(temperature=0, max_tokens=120, ignore_eos=True, bad_words=[phrase]) for phrase in phrases]
    for phrase, output in zip(phrases, llm.generate([PROMPT] * len(phrases), params), strict=True):
        (banned,) = output.outputs
        ids = llm.tokenizer.encode(" " + phrase, add_special_tokens=False)
        assert len(ids) > 1
        assert index_of(ids, banned.token_ids) is None, phrase
        if (index := index_of(ids, plain.token_ids)) is not None:
            # The beginning of a bad word is allowed; only its last token is not, after the others.
            end = index + len(ids) - 1
            assert banned.token_ids[:end] == plain.token_ids[:end]


def index_of(run: list[int], ids: list[int]) -> int | None:
    return next((i for i in range(len(ids)) if ids[i : i + len(run)] == run), None)


def test_bad_words_that_no_logit_can_make_are_no_words() -> None:
    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens=True: [1, 99] if "bad" in text else [2])
    config = SimpleNamespace(vocab_size=50, eos_token_ids=(), max_len_limit=100)
    input_processor = InputProcessor(
        tokenizer=tokenizer,  # type: ignore[arg-type]
        grammars=None,
        model_config=config,  # type: ignore[arg-type]
        max_model_len=64,
        max_cache_tokens=64,
        seed=0,
    )
    assert input_processor._tokenize([1], SamplingParams(bad_words=["bad", "worse"])).bad_words == ((2,),)


def test_allowed_token_ids_and_logit_bias(llm: LLM) -> None:
    allowed = [20, 300, 301, 4000]
    params = SamplingParams(temperature=2.0, max_tokens=40, seed=1, allowed_token_ids=allowed, ignore_eos=True)
    sampled = llm.generate(PROMPT, params)[0].outputs[0].token_ids
    assert set(sampled) <= set(allowed)
    assert len(set(sampled)) > 1
    (plain,) = greedy(llm, max_tokens=1)
    (other,) = greedy(llm, max_tokens=1, logit_bias={plain.token_ids[0]: -100})
    assert other.token_ids != plain.token_ids


def test_logprobs_go_with_the_tokens(llm: LLM) -> None:
    (output,) = greedy(llm, max_tokens=10, logprobs=3)
    assert output.logprobs is not None
    for token, entry in zip(output.token_ids, output.logprobs, strict=True):
        assert entry[token].rank == 1
        assert entry.top[0] == (token, entry.logprob)
        assert [rank for _, (_, rank) in entry.items()] == [1, 2, 3]
