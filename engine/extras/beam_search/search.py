"""Beam search of many prompts at once. The prefix cache holds what beams have in common."""

from collections.abc import Sequence

from ...core.sampling_params import SamplingParams
from ...serving.input_processor import Prompt
from ...serving.llm import LLM, BeamSearchOutput, BeamSearchSequence
from .beams import Beam, Beams
from .params import BeamSearchParams


def beam_search(llm: LLM, prompts: Sequence[Prompt], params: BeamSearchParams) -> list[BeamSearchOutput]:
    """Search the likeliest outputs of each prompt. Raises InvalidRequestError before anything runs."""
    end_tokens = frozenset[int]() if params.ignore_eos else llm.eos_token_ids
    with llm.generate_stream(prompts, max_tokens=params.max_tokens) as checked:  # closed before its first step
        token_ids = [output.prompt_token_ids for output in checked.outputs]
    one_token = SamplingParams(
        max_tokens=1, logprobs=params.num_candidates(len(end_tokens)), temperature=0, ignore_eos=True
    )
    searches = [Beams(params, end_tokens) for _ in prompts]
    while any(search.running for search in searches):
        texts = [
            {"prompt_token_ids": [*ids, *beam.token_ids]}
            for ids, search in zip(token_ids, searches, strict=True)
            for beam in search.running
        ]
        positions = [(output.outputs[0].logprobs or [])[0] for output in llm.generate(texts, one_token)]
        for search in searches:
            own, positions = positions[: len(search.running)], positions[len(search.running) :]
            search.advance(own)
    return [
        BeamSearchOutput([_sequence(llm, ids, beam, params) for beam in search.finished])
        for ids, search in zip(token_ids, searches, strict=True)
    ]


def _sequence(llm: LLM, prompt: list[int], beam: Beam, params: BeamSearchParams) -> BeamSearchSequence:
    is_cut = beam.end_token is not None and not params.include_stop_str_in_output
    tokens = [*prompt, *(beam.token_ids[:-1] if is_cut else beam.token_ids)]
    return BeamSearchSequence(
        tokens,
        list(beam.logprobs),
        beam.logprob,
        beam.score,
        None if llm.tokenizer is None else llm.tokenizer.decode(tokens),
        "length" if beam.end_token is None else "stop",
        beam.end_token,
    )
