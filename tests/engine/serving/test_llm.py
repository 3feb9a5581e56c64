"""LLM and pipeline: the shapes that scripts written for vLLM and MII expect."""

import gc
import io
import pickle
import sys
import threading
import weakref
from typing import Any
from unittest.mock import Mock

import pytest

from splitfuse.engine import LLM, SamplingParams, TextPrompt, TokensPrompt, pipeline
from splitfuse.engine.errors import ConfigError, InvalidRequestError

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def llm(tiny_folder: str) -> LLM:
    """Return an LLM for calls that leave nothing behind."""
    return LLM(tiny_folder, dtype="float32", chat_template=TEMPLATE)


def test_prompts_come_as_text_ids_or_objects_and_alone_or_in_lists(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    ids = llm.tokenizer.encode("hello") if llm.tokenizer else []
    spellings = ["hello", ids, {"prompt": "hello"}, {"prompt_token_ids": ids}]
    alone = [llm.generate(prompt, params)[0] for prompt in spellings]  # type: ignore[arg-type]
    together = llm.generate(spellings, params)  # type: ignore[arg-type]
    assert len({tuple(output.outputs[0].token_ids) for output in alone + together}) == 1
    assert together[0].prompt_token_ids == ids
    assert together[0].finished
    assert together[1].num_cached_tokens % 16 == 0


def test_each_prompt_can_have_its_own_params(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 5, 3)]
    outputs = llm.generate(["a", "b", "c"], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 3]
    with pytest.raises(InvalidRequestError, match="3 prompts but 2"):
        llm.generate(["a", "b", "c"], params[:2])


def test_a_refused_prompt_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate(["fine", ""])
    assert llm.engine.core.num_unfinished == 0
    assert llm.engine.core.blocks.device.num_used_blocks == 0


def test_the_same_seed_gives_the_same_draws_in_a_new_engine(tiny_folder: str) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    first, second = (LLM(tiny_folder, dtype="float32", seed=3).generate(["a", "b"], params) for _ in range(2))
    assert [o.outputs[0].token_ids for o in first] == [o.outputs[0].token_ids for o in second]
    other = LLM(tiny_folder, dtype="float32", seed=4).generate(["a", "b"], params)
    assert [o.outputs[0].token_ids for o in first] != [o.outputs[0].token_ids for o in other]


def test_threads_take_turns(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    expected = llm.generate("hello", params)[0].outputs[0].token_ids
    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: results.append(llm.generate("hello", params)[0].outputs[0].token_ids))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_pipeline_has_the_shape_of_mii(tiny_folder: str) -> None:
    pipe = pipeline(tiny_folder, dtype="float32")
    (response,) = pipe(["hello"], max_new_tokens=8, ignore_eos=True)
    assert (response.prompt_length, response.generated_length, response.finish_reason) == (5, 8, "length")
    assert str(response) == response.generated_text
    assert [r.generated_length for r in pipe(["a", "b"], max_length=4, ignore_eos=True)] == [3, 3]
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        pipe("hello", max_new_tokens=-1)


def test_pipeline_takes_miis_arguments(tiny_folder: str) -> None:
    pipe = pipeline(tiny_folder, dtype="float32")
    streamed: list[str] = []
    greedy = {"max_new_tokens": 6, "do_sample": False, "ignore_eos": True}
    (response,) = pipe("hello", **greedy, streaming_fn=lambda new: streamed.append(new[0].generated_text))
    assert len(streamed) == 6
    assert "".join(streamed) == response.generated_text
    assert pipe("hello", **greedy)[0].generated_text == response.generated_text, "greedy"
    (full,) = pipe("hello", **greedy, return_full_text=True)
    assert full.generated_text == "hello" + response.generated_text
    assert pipe("hello", max_new_tokens=6, min_new_tokens=6)[0].generated_length == 6
    pipe.destroy()
    with pytest.raises(InvalidRequestError, match="closed"):
        pipe("hello")


def test_what_vllms_scripts_ask_for(tiny_folder: str) -> None:
    harmless = {"tensor_parallel_size": 1, "trust_remote_code": False, "tokenizer": tiny_folder, "revision": None}
    with LLM(tiny_folder, dtype="float", disable_log_stats=True, **harmless) as llm:  # type: ignore[arg-type]
        assert llm.get_tokenizer() is llm.tokenizer
        usual = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
        assert llm.get_default_sampling_params() == usual != SamplingParams()
        params = SamplingParams(max_tokens=3, logprobs=0, ignore_eos=True, detokenize=True, best_of=1)
        (output,) = llm.generate("hello", params)
    (completion,) = output.outputs
    assert output.metrics is completion.metrics is not None
    assert (output.metrics.time_in_queue or 0) > 0
    logprobs = [item.logprob for item in completion.logprobs or ()]
    assert completion.cumulative_logprob == pytest.approx(sum(logprobs))
    assert len(logprobs) == 3
    with pytest.raises(InvalidRequestError, match="this LLM is closed"):
        llm.generate("hello")


def test_prompts_without_params_have_the_models(tiny_folder: str) -> None:
    override = {"temperature": 0.4, "top_k": 7, "max_new_tokens": 12}
    default = SamplingParams(temperature=0.4, top_k=7, top_p=0.95, min_p=0.05, default_max_tokens=12)
    messages = [{"role": "user", "content": "hello"}]

    def outputs(*params: SamplingParams) -> list[list[int]]:
        with LLM(tiny_folder, dtype="float32", override_generation_config=override) as llm:  # draws begin anew
            assert llm.get_default_sampling_params() == default
            found = llm.generate(["hello", "b"], *params) + llm.chat(messages, *params, chat_template=TEMPLATE)
        return [output.outputs[0].token_ids for output in found]

    assert outputs() == outputs(default) != outputs(SamplingParams(ignore_eos=True))
    assert [len(ids) for ids in outputs(SamplingParams(ignore_eos=True))] == [64] * 3, "given params stay as they are"


def test_fields_that_a_pipeline_is_not_given_are_the_models(tiny_folder: str) -> None:
    pipe = pipeline(tiny_folder, dtype="float32", override_generation_config={"temperature": 0.4, "max_new_tokens": 12})
    chosen: list[dict[str, Any]] = [{}, {"temperature": 0.4, "max_new_tokens": 12}, {"temperature": 2.0}]
    answers = [pipe("hello", seed=3, **fields) for fields in chosen]
    assert answers[0] == answers[1] != answers[2]


def test_the_tokenizer_renders_as_transformers_do(tiny_folder: str) -> None:
    template = "{% for m in messages %}{{ m.content }};{% endfor %}{{ mood }}{{ 'go:' if add_generation_prompt }}"
    tokenizer = LLM(tiny_folder, dtype="float32", chat_template=template).get_tokenizer()
    asked = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True) == "hello;go:"
    assert tokenizer.apply_chat_template(asked, tokenize=False, mood="gay") == "hello;gay"
    assert tokenizer.apply_chat_template(asked) == tokenizer.encode("hello;", add_special_tokens=False)


def test_keywords_that_would_change_something_are_refused(tiny_folder: str) -> None:
    with pytest.raises(ConfigError, match="pipeline_parallel_size=2 is not taken"):
        LLM(tiny_folder, pipeline_parallel_size=2)
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        LLM(tiny_folder, max_num_seq=2)
    with pytest.raises(InvalidRequestError, match="best_of 3 is not taken"):
        SamplingParams(best_of=3)
    with pytest.raises(InvalidRequestError, match="logits_processors are not taken"):
        SamplingParams(logits_processors=[lambda ids, logits: logits])
    assert SamplingParams(guided_decoding={"regex": "a+"}) == SamplingParams(structured_outputs={"regex": "a+"})  # type: ignore[arg-type]


def test_chat_answers_one_conversation_or_many(tiny_folder: str) -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ 'go:' if add_generation_prompt }}"
    llm = LLM(tiny_folder, dtype="float32", chat_template=template)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    conversations = [
        [{"role": "user", "content": "hello"}],
        [{"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]}],
    ]
    texts = ["user:hello;go:", "system:be kind;go:"]
    many = llm.chat(conversations, params, use_tqdm=False)
    expected = llm.generate(texts, params, use_tqdm=False)
    assert [output.prompt_token_ids for output in many] == [output.prompt_token_ids for output in expected]
    assert [output.outputs[0].token_ids for output in many] == [output.outputs[0].token_ids for output in expected]
    (by_text,) = llm.chat("hello", params)
    assert by_text.prompt_token_ids == many[0].prompt_token_ids
    (alone,) = llm.chat(conversations[0], params)
    assert alone.outputs[0].token_ids == many[0].outputs[0].token_ids
    assert llm.tokenizer is not None

    def text(**options: object) -> str:
        (output,) = llm.chat(conversations[0], params, **options)  # type: ignore[arg-type]
        return llm.tokenizer.decode(output.prompt_token_ids)  # type: ignore[union-attr]

    assert text(add_generation_prompt=False) == "user:hello;"
    assert text(add_generation_prompt=False, continue_final_message=True) == "user:hello"
    tools = [{"type": "function", "function": {"name": "f", "strict": True}}]
    other = "{{ tools | tojson }} {{ mood }}"
    assert text(chat_template=other, tools=tools, chat_template_kwargs={"mood": "gay"}) == (
        '[{"type": "function", "function": {"name": "f"}}] gay'
    )


def test_wrong_types_are_refused_in_words(llm: LLM) -> None:
    for wrong in (123, 1.5, object()):
        kind = type(wrong).__name__
        with pytest.raises(InvalidRequestError, match=f"^prompts must be a text, .*, not {kind}$"):
            llm.generate(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match=f"^messages must be a text, .*, not {kind}$"):
            llm.chat(wrong)  # type: ignore[arg-type]


def test_a_terminal_shows_a_bar_for_several_prompts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, n=2)
    expected = [output.outputs[0].token_ids for output in llm.generate(["a", "b"], params)]

    def shown(prompts: list[str], **options: Any) -> str:
        terminal = io.StringIO()
        monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "stderr", terminal)
        outputs = llm.generate(prompts, params, **options)
        assert [output.outputs[0].token_ids for output in outputs] == expected[: len(prompts)]
        return terminal.getvalue()

    assert "4/4" in shown(["a", "b"])
    assert shown(["a"]) == shown(["a", "b"], use_tqdm=False) == ""


def test_a_chat_that_makes_no_sense_is_refused(tiny_folder: str) -> None:
    llm = LLM(tiny_folder, dtype="float32")
    with pytest.raises(InvalidRequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hello"}])
    with pytest.raises(InvalidRequestError, match=r"messages\[0\]\.role"):
        llm.chat([{"role": "no body", "content": "hello"}])
    with pytest.raises(InvalidRequestError, match="at least one"):
        llm.chat([])


def test_logprobs_have_the_text_of_their_tokens(tiny_folder: str) -> None:
    llm = LLM(tiny_folder, dtype="float32")
    params = SamplingParams(max_tokens=3, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (output,) = llm.generate("hello", params)
    positions = [*(output.outputs[0].logprobs or ()), *(output.prompt_logprobs or [])[1:]]
    assert len(positions) == 3 + 4
    for position in positions:
        assert position is not None
        decoded = {token_id: item.decoded_token for token_id, item in position.items()}
        assert decoded == {token_id: llm.get_tokenizer().decode([token_id]) for token_id in position}
    again = pickle.loads(pickle.dumps(output))
    assert again == output
    assert [i.decoded_token for i in again.outputs[0].logprobs[0].values()] == [
        i.decoded_token for i in (output.outputs[0].logprobs or [])[0].values()
    ]


def test_keywords_are_fields_of_the_sampling_params(llm: LLM) -> None:
    expected = llm.generate(["hello", "b"], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}
    for outputs in (
        llm.generate(["hello", "b"], **fields),
        llm.generate(prompt_token_ids=[output.prompt_token_ids for output in expected], **fields),
        llm.generate([TextPrompt(prompt="hello"), TokensPrompt(prompt_token_ids=[98])], **fields),
    ):
        assert [o.outputs[0].token_ids for o in outputs[:1]] == [o.outputs[0].token_ids for o in expected[:1]]
        assert [len(output.outputs[0].token_ids) for output in outputs] == [5, 5]
    with pytest.raises(InvalidRequestError, match="did you mean max_tokens"):
        llm.generate("hello", max_token=5)
    with pytest.raises(InvalidRequestError, match="give sampling_params or seed as keywords"):
        llm.generate("hello", SamplingParams(), seed=3)
    with pytest.raises(InvalidRequestError, match="prompts or prompt_token_ids"):
        llm.generate()


def test_adapters_and_extra_arguments_are_refused_by_name(llm: LLM) -> None:
    assert llm.generate("hello", SamplingParams(max_tokens=1, extra_args=None), lora_request=None)
    with pytest.raises(InvalidRequestError, match="lora_request needs"):
        llm.generate("hello", lora_request=object())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="extra_args are not taken"):
        SamplingParams(extra_args={"a": 1})


def test_prompts_have_their_own_priority(tiny_folder: str) -> None:
    llm = LLM(tiny_folder, dtype="float32", scheduling_policy="priority", max_num_seqs=1)
    order = [delta.request_id for delta in llm.generate_stream(["a", "b", "c"], priority=[3, 2, 1], max_tokens=1)]
    assert order == sorted(order, reverse=True)
    with pytest.raises(InvalidRequestError, match="2 prompts but 1 priorities"):
        llm.generate(["a", "b"], priority=[1])


def test_params_can_be_assigned_and_are_checked_by_the_call(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    params.max_tokens, params.ignore_eos = 3, True
    assert params.clone() == params
    assert params.clone() is not params
    stream = llm.generate_stream("hello", params)
    params.max_tokens = -1
    assert len(list(stream)) == 3, "a call keeps the parameters that it began with"
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        llm.generate("hello", params)


def test_a_stream_is_an_iterator_of_deltas(llm: LLM) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    expected = llm.generate(["hello", "b"], **fields)
    stream = llm.generate_stream(["hello", "b"], **fields)
    first, second = (output.request_id for output in stream.outputs)
    texts = {first: "", second: ""}
    for delta in stream:
        texts[delta.request_id] += delta.text
    assert [*texts.values()] == [output.outputs[0].text for output in expected]
    assert [output.outputs[0].token_ids for output in stream.outputs] == [o.outputs[0].token_ids for o in expected]
    chat = llm.chat_stream([{"role": "user", "content": "hello"}], **fields)
    assert "".join(delta.text for delta in chat) == expected[0].outputs[0].text


def test_streams_and_calls_run_side_by_side(llm: LLM) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    expected = llm.generate("hello", **fields)[0].outputs[0].token_ids
    streams = [llm.generate_stream("hello", **fields) for _ in range(2)]
    next(streams[0])
    assert llm.generate("hello", **fields)[0].outputs[0].token_ids == expected, "a call while streams are open"
    assert [list(stream)[-1].finish_reason for stream in streams] == ["length"] * 2
    assert [stream.outputs[0].outputs[0].token_ids for stream in streams] == [expected] * 2


@pytest.mark.parametrize("leave", ["close", "with", "drop"])
def test_leaving_a_stream_aborts_its_requests(llm: LLM, leave: str) -> None:
    stream = llm.generate_stream(["a", "b"], max_tokens=50, ignore_eos=True)
    next(stream)
    if leave == "with":
        with stream:
            pass
    elif leave == "close":
        stream.close()
    if leave != "drop":
        assert llm.engine.core.num_unfinished == 0
        assert list(stream) == []
    del stream
    llm.generate("c", max_tokens=1)
    assert llm.engine.core.num_unfinished == 0
    assert llm.engine.core.blocks.device.num_used_blocks == 0


async def test_a_notebooks_loop_does_not_stand_in_the_way(llm: LLM) -> None:
    assert len(llm.generate("hello", max_tokens=3, ignore_eos=True)[0].outputs[0].token_ids) == 3


@pytest.mark.parametrize("place", ["submit", "step"])
def test_an_interrupt_costs_one_call(llm: LLM, place: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(llm.engine, place, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], max_tokens=3)
    assert llm.engine.num_unfinished == 0
    assert len(llm.generate("a", max_tokens=3, ignore_eos=True)[0].outputs[0].token_ids) == 3


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_llm_that_goes_keeps_no_memory(tiny_folder: str, is_closed: bool) -> None:
    gc.disable()
    try:
        llm = LLM(tiny_folder, dtype="float32")
        llm.generate("a", max_tokens=3)
        runner = weakref.ref(llm.engine.runner)
        if is_closed:
            llm.close()
        else:
            del llm
        assert runner() is None, "without the garbage collector"
    finally:
        gc.enable()
