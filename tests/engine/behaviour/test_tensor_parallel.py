"""Tensor parallelism: every family on 2, 3 and 4 ranks: threads here, processes in `make tensor-parallel`."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import write_gguf
from quantized_checkpoints import awq, fp8, gptq, save_quantized
from random_schedule import Arrival, random_llm, run_schedule
from rank_answers import PARAMS, PROMPTS, answer
from thread_ranks import use_thread_ranks
from tiny_models import CONFIGS, VARIANTS, VOCAB_SIZE, greedy, save_model

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import ConfigError, RankLostError
from splitfuse.engine.execution.sampling import prompt_logprobs
from splitfuse.kernels.cpu import build

pytestmark = pytest.mark.sampled(10)

# Refused: every rank would hold the same latents, or the layers keep caches of several shapes.
UNDIVIDED = ("deepseek", "glm4-moe-lite", "gemma3n", "gemma4")
DTYPES = ["float32", "bfloat16"]


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    if build.library() is None:
        pytest.skip("needs a C++ compiler for the native CPU library")
    use_thread_ranks(monkeypatch)


@pytest.mark.parametrize("name", sorted(name for name in CONFIGS if not name.startswith(UNDIVIDED)))
def test_the_same_slices_give_the_same_bits_on_1_2_and_4_ranks(name: str, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    for dtype in DTYPES:
        alone = answer(tmp_path, 1, 4, dtype=dtype)
        assert answer(tmp_path, 2, 4, dtype=dtype) == alone
        assert answer(tmp_path, 4, 4, dtype=dtype) == alone
    whole = answer(tmp_path)
    assert answer(tmp_path, 2)[0] == answer(tmp_path, 1, 4)[0] == whole[0], "in float32 the tokens are those of one"


def with_six_heads(name: str) -> Any:
    """Return a model of this family that three ranks can share."""
    config = copy.deepcopy(CONFIGS[name])
    config.num_attention_heads = 6
    config.hidden_size = {64: 96, 80: 84}[config.hidden_size]
    for field in ("num_key_value_heads", "num_kv_heads"):
        if getattr(config, field, None) in (2, 4):
            setattr(config, field, {2: 3, 4: 6}[getattr(config, field)])
    for field in ("moe_intermediate_size", "shared_expert_intermediate_size"):
        if hasattr(config, field):
            setattr(config, field, 42)
    return config


@pytest.mark.parametrize("name", sorted(name for name in CONFIGS.keys() - VARIANTS if not name.startswith(UNDIVIDED)))
def test_three_ranks_answer_as_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny_models.CONFIGS, name, with_six_heads(name))
    save_model(name, tmp_path)
    assert answer(tmp_path, 3)[0] == answer(tmp_path)[0]
    for dtype in DTYPES:
        assert answer(tmp_path, 3, dtype=dtype) == answer(tmp_path, 1, 3, dtype=dtype)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(2))
def test_random_schedules_change_nothing(
    seed: int, dtype: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare one schedule on one rank and on several: equal tokens and logprobs. In float32 transformers' tokens."""
    monkeypatch.setitem(tiny_models.CONFIGS, "llama-mha", with_six_heads("llama-mha"))
    monkeypatch.setattr(prompt_logprobs, "_NUM_LOGITS", VOCAB_SIZE * 7)
    model = save_model("llama-mha", tmp_path)
    found: list[list[Arrival]] = []
    for num_ranks in (1, size):
        rng = random.Random(f"{seed} {dtype}")
        llm = random_llm(
            rng, str(tmp_path), max_tokens_of_one=140, block_sizes=(4, 16), dtype=dtype, preemption_mode="recompute",
            tensor_parallel_size=num_ranks, tensor_parallel_slices=6,
        )  # fmt: skip
        found.append([arrival(rng, index) for index in range(12)])
        run_schedule(llm, found[-1])
        llm.close()
    for one, several in zip(*found, strict=True):
        assert one.output.token_ids == several.output.token_ids
        assert one.output.logprobs == several.output.logprobs
        assert list(one.prompt_logprobs or ()) == list(several.prompt_logprobs or ())
        if dtype == "float32" and one.params.temperature == 0:
            assert one.output.token_ids == greedy(model, one.prompt, 12, guess=one.output.token_ids)


def arrival(rng: random.Random, index: int) -> Arrival:
    prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 120))]
    params = SamplingParams(
        temperature=(0, 0.8)[index % 2], seed=index, max_tokens=12, ignore_eos=True, logprobs=3,
        prompt_logprobs=2 if index % 5 == 0 else None,
    )  # fmt: skip
    return Arrival(prompt, params, at_step=rng.randint(0, 30))


@pytest.mark.parametrize("cache_dtype", ["auto", "int8"])
def test_swaps_and_forks_reach_all_ranks(cache_dtype: str, tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    options = {"num_kv_blocks": 30, "block_size": 4, "swap_space": 1e-2, "preemption_mode": "swap"}
    params = SamplingParams(n=3, temperature=0.9, seed=1, max_tokens=20, ignore_eos=True)
    found = []
    for size in (1, 2):
        with LLM(
            str(tmp_path),
            device="cpu",
            dtype="float32",
            kv_cache_dtype=cache_dtype,
            tensor_parallel_size=size,
            **options,
        ) as llm:
            outputs = llm.generate([prompt[:30] for prompt in PROMPTS], params)
            assert llm.engine.core.scheduler.num_preemptions > 0, "the test is meant to swap"
        found.append([output.token_ids for request_output in outputs for output in request_output.outputs])
    pairs = [pair for tokens in zip(*found, strict=True) for pair in zip(*tokens, strict=True)]
    # Sums over ranks differ in their last bits, so a number may be rounded to the next int8.
    assert sum(one == other for one, other in pairs) >= (1 if cache_dtype == "auto" else 0.8) * len(pairs)


def test_a_draft_model_and_a_grammar_go_with_it(tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    options = {"speculative_config": {"model": str(tmp_path), "num_speculative_tokens": 3, "adaptive": False}}
    assert answer(tmp_path, 2, **options)[0] == answer(tmp_path)[0]
    params = SamplingParams(temperature=0.9, seed=1, max_tokens=12, structured_outputs={"regex": "[a-f]{3,9}"})
    texts = []
    for size in (1, 2):
        with LLM(str(tmp_path), device="cpu", dtype="float32", tensor_parallel_size=size) as llm:
            texts.append(llm.generate("abc", params)[0].outputs[0].text)
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("name", ["llama-yarn", "gpt2", "phi3-window"])
def test_weights_are_rounded_whole(name: str, quantization: str, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    options = {"quantization": quantization}
    assert answer(tmp_path, 2, **options)[0] == answer(tmp_path, **options)[0]
    assert answer(tmp_path, 2, 4, **options) == answer(tmp_path, 1, 4, **options)


CASES = {"awq": awq(4, 32), "gptq-act-order": gptq(4, 32, act_order=True), "gptq": gptq(4, 16), "fp8": fp8((64, 64))}


@pytest.mark.parametrize(
    ("model", "name"),
    [*((model, name) for model in ("llama-gqa-tied", "phi3-window") for name in CASES), ("qwen3-moe", "fp8")],
)
def test_quantized_checkpoints_are_cut_as_they_are(model: str, name: str, tmp_path: Path) -> None:
    folder, _ = save_quantized(model, CASES[name], tmp_path / "model")
    assert answer(folder, 2)[0] == answer(folder)[0]
    assert answer(folder, 4, 4) == answer(folder, 1, 4)


@pytest.mark.parametrize("kind", [Type.Q4_1, Type.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["llama-yarn", "gpt2", "qwen3-moe"])
def test_gguf_files_are_cut_as_they_are(name: str, kind: Type, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, name, kind=kind, alignment=64)
    assert answer(path, 2)[0] == answer(path)[0]
    assert answer(path, 2, 4) == answer(path, 1, 4)


@pytest.mark.parametrize(
    ("size", "options", "words"),
    [
        (3, {}, "num_attention_heads 4 .* tensor_parallel_size 3"),
        (4, {"tensor_parallel_slices": 6}, "multiple of tensor_parallel_size"),
    ],
)
def test_what_cannot_be_is_refused(size: int, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    with pytest.raises(ConfigError, match=words):
        LLM(str(tmp_path), tensor_parallel_size=size, device="cpu", **options)


def test_a_step_that_fails_on_rank_0_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not retry: the other ranks are within the step, and a retry would sum numbers of another try."""
    save_model("llama-mha", tmp_path)
    with LLM(str(tmp_path), device="cpu", dtype="float32", tensor_parallel_size=2) as llm:
        model = llm.engine.pipeline._runner._runner.model._model  # type: ignore[attr-defined]

        def fail(*_: object) -> torch.Tensor:
            raise RuntimeError("planted")

        monkeypatch.setattr(model, "forward", fail)
        with pytest.raises(RankLostError, match=r"rank 0 failed within a step .*planted"):
            llm.generate([PROMPTS[0]], PARAMS[0])
