"""Beam search keeps the beams that transformers keeps, with the same scores, in the same order."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCAB_SIZE, save_model

from splitfuse.engine import LLM, BeamSearchParams
from splitfuse.engine.errors import ContextLengthError, InvalidRequestError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Model whose answers end early, and its folder."""
    folder = tmp_path_factory.mktemp("beams")
    model = save_model("llama-gqa-tied", folder)
    model.generation_config.pad_token_id = 0
    return model, folder


def likeliest_end(model: Any, prompt: list[int]) -> int:
    """Return a token that greedy output has early: as end token it ends some beams, and not others."""
    with torch.no_grad():
        tokens = model.generate(torch.tensor([prompt]), max_new_tokens=3, do_sample=False, eos_token_id=None)
    return int(tokens[0, -1])


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_beams_equal_transformers(model: tuple[Any, Path], width: int, length_penalty: float) -> None:
    reference, folder = model
    rng = random.Random(f"{width} {length_penalty}")
    prompts = [[rng.randrange(15, VOCAB_SIZE) for _ in range(length)] for length in (1, 15, 33)]
    ends = frozenset(likeliest_end(reference, prompt) for prompt in prompts[: 2 if width <= 4 else 1])
    num_stopped = 0
    for end_tokens in (ends, frozenset[int]()):
        with LLM(str(folder), dtype="float32", block_size=4) as llm:
            llm._input_processor.eos_token_ids = end_tokens
            params = BeamSearchParams(width, 8, length_penalty=length_penalty, include_stop_str_in_output=True)
            outputs = llm.beam_search([{"prompt_token_ids": prompt} for prompt in prompts], params)
        for prompt, output in zip(prompts, outputs, strict=True):
            expected = reference.generate(
                torch.tensor([prompt]),
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=8,
                do_sample=False,
                length_penalty=length_penalty,
                eos_token_id=list(end_tokens) or None,
                return_dict_in_generate=True,
                output_scores=True,
            )
            rows = [without_padding(row.tolist(), len(prompt), end_tokens) for row in expected.sequences]
            assert [sequence.tokens for sequence in output.sequences] == rows
            if width > 1:  # transformers has no scores of a single beam
                scores = [sequence.score for sequence in output.sequences]
                assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)
            for sequence in output.sequences:
                assert sequence.cum_logprob == pytest.approx(sum(item.logprob for item in sequence.logprobs))
                num_stopped += sequence.finish_reason == "stop"
    assert num_stopped or width < 4 or length_penalty > 1, "the test is meant to have beams that end"


def without_padding(row: list[int], num_prompt_tokens: int, end_tokens: frozenset[int]) -> list[int]:
    """Return a row up to its first end token."""
    for index in range(num_prompt_tokens, len(row)):
        if row[index] in end_tokens:
            return row[: index + 1]
    return row


def test_the_end_token_is_cut_off(model: tuple[Any, Path]) -> None:
    reference, folder = model
    end = likeliest_end(reference, [20, 21])
    with LLM(str(folder), dtype="float32") as llm:
        llm._input_processor.eos_token_ids = frozenset({end})
        prompt = {"prompt_token_ids": [20, 21]}
        (output,) = llm.beam_search([prompt], BeamSearchParams(beam_width=4, max_tokens=6, length_penalty=0))
        (whole,) = llm.beam_search([prompt], BeamSearchParams(beam_width=4, max_tokens=6, ignore_eos=True))
    stopped = [sequence for sequence in output.sequences if sequence.finish_reason == "stop"]
    assert stopped
    assert {sequence.stop_reason for sequence in stopped} == {end}
    assert all(end not in sequence.tokens and sequence.logprobs[-1].token_id == end for sequence in stopped)
    assert {len(sequence.tokens) for sequence in whole.sequences} == {8}
    assert whole.sequences[0].text == llm.get_tokenizer().decode(whole.sequences[0].tokens)


def test_a_search_that_cannot_work_is_refused_before_it_runs(model: tuple[Any, Path]) -> None:
    with pytest.raises(InvalidRequestError, match="beam_width"):
        BeamSearchParams(beam_width=0, max_tokens=3)
    with pytest.raises(InvalidRequestError, match=r"temperature 0\.7 is not taken"):
        BeamSearchParams(beam_width=2, max_tokens=3, temperature=0.7)
    with LLM(str(model[1]), dtype="float32") as llm:
        with pytest.raises(ContextLengthError):
            llm.beam_search("hello", BeamSearchParams(beam_width=2, max_tokens=100_000))
        llm._input_processor.eos_token_ids = frozenset({1, 2, 3})
        with pytest.raises(InvalidRequestError, match="with 3 end tokens the most is 5"):
            llm.beam_search("hello", BeamSearchParams(beam_width=6, max_tokens=3))
        assert llm.core.num_unfinished == 0
