"""Adapters in one batch answer like the models that they are merged into, whatever the schedule."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from random_schedule import Arrival, random_llm, run_schedule
from tiny_adapters import TARGETS, merged, random_adapter, save_adapter
from tiny_models import CONFIGS, VOCAB_SIZE, greedy, save_model

from splitfuse.engine import LLM, LoRARequest, SamplingParams
from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.extras.lora.adapters import Adapters

NUM_NEW = 12
NUM_ADAPTERS = 8
# Names of linears by family, where they are not Llama's. Families without any of theirs refuse adapters.
OTHER_TARGETS = {
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "glm": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    "starcoder2": ("q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"),
}
# Fused q, k and v are interleaved, and no linear has the file's name; latents have linears of other names.
WITHOUT = ("falcon", "gpt-neox", "deepseek", "glm4-moe-lite")
MIXTURES = ("q_proj", "k_proj", "v_proj", "o_proj")

PARAMS = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)


def prompts_of(rng: random.Random, count: int, *, longest: int = 120) -> list[list[int]]:
    return [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def targets_of(name: str) -> tuple[str, ...]:
    family = name.partition("-")[0]
    family = "glm" if family == "glm4" and "moe" not in name else family
    return OTHER_TARGETS.get(family, MIXTURES if "num_experts" in str(CONFIGS[name].to_dict()) else TARGETS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_family_answers_like_the_merged_model(name: str, tmp_path: Path) -> None:
    model = save_model(name, tmp_path / "model")
    if name.startswith(WITHOUT):
        pytest.skip("no linear has the file's name")
    tensors = random_adapter(model, seed=1, targets=targets_of(name))
    path = save_adapter(tmp_path / "adapter", tensors)
    llm = LLM(str(tmp_path / "model"), dtype="float32", enable_lora=True, max_num_batched_tokens=48)
    prompts = prompts_of(random.Random(name), 4)
    request = LoRARequest("a", 1, str(path))
    changed = merged(model, tensors)
    outputs = llm.generate([*prompts, *prompts], PARAMS, lora_request=[request] * 4 + [None] * 4)
    for theirs, prompt, output in zip([changed] * 4 + [model] * 4, prompts * 2, outputs, strict=True):
        token_ids = output.outputs[0].token_ids
        assert token_ids == greedy(theirs, prompt, NUM_NEW, guess=token_ids)


Case = tuple[str, list[Path], list[list[int]], dict[tuple[int, int], list[int]]]


@pytest.fixture(scope="module", params=["llama-gqa-tied", "phi3-window", "cohere"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Model folder, adapters, prompts, and answers by prompt and adapter, the last of which is the model's own."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(request.param, folder / "model")
    rng = random.Random(request.param)
    prompts = prompts_of(rng, 6)
    paths, answers = [], {}
    for index in range(NUM_ADAPTERS):
        targets = targets_of(request.param)
        own = [target for target in targets if rng.random() < 0.7] or targets
        tensors = random_adapter(model, seed=index, rank=rng.choice([1, 3, 8, 16, 37]), targets=own)
        paths.append(save_adapter(folder / f"adapter{index}", tensors))
        changed = merged(model, tensors)
        answers |= {(at, index): greedy(changed, prompt, NUM_NEW) for at, prompt in enumerate(prompts)}
    answers |= {(at, NUM_ADAPTERS): greedy(model, prompt, NUM_NEW) for at, prompt in enumerate(prompts)}
    return str(folder / "model"), paths, prompts, answers


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(4))
def test_eight_adapters_and_the_model_under_random_schedules(case: Case, seed: int) -> None:
    """The prompts are shared, so a block of one adapter that another finds changes an answer."""
    folder, paths, prompts, answers = case
    rng = random.Random(f"{folder}{seed}")
    llm = random_llm(
        rng,
        folder,
        max_tokens_of_one=120 + NUM_NEW,
        block_sizes=(4, 16) if seed % 2 else (1, 8),
        enable_lora=True,
        enable_prefix_caching=bool(seed),
    )
    adapters = [llm.engine.part(Adapters).request(LoRARequest(path.name, str(path))) for path in paths]
    arrivals = {
        key: Arrival(
            prompts[key[0]],
            PARAMS.clone() if key[1] == NUM_ADAPTERS else adapters[key[1]].params(PARAMS),
            at_step=rng.randint(0, 60),
        )
        for key in answers
    }
    leavers = [
        Arrival(rng.choice(prompts), rng.choice(adapters).params(PARAMS), at_step=rng.randint(0, 60), abort_after=3)
        for _ in range(10)
    ]
    run_schedule(llm, [*arrivals.values(), *leavers])
    for key, arrival in arrivals.items():
        assert arrival.output.token_ids == answers[key], (key, llm.config)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "quantization": "int4"},
        {"dtype": "bfloat16", "quantization": "int8", "quantization_activations": "int8"},
        {"dtype": "float32", "quantization": "int8", "kv_cache_dtype": "int8"},
    ],
    ids=str,
)
def test_bits_are_equal_alone_and_in_company(case: Case, options: dict[str, Any]) -> None:
    folder, paths, prompts, _ = case
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3)

    def logprobs(llm: LLM, pairs: list[tuple[list[int], Path | None]]) -> list[Any]:
        requests = [path and LoRARequest(path.name, str(path)) for _, path in pairs]
        outputs = llm.generate([prompt for prompt, _ in pairs], params, lora_request=requests)
        return [(list(o.outputs[0].token_ids), o.outputs[0].logprobs) for o in outputs]

    pairs = [(prompt, path) for prompt in prompts[:3] for path in (*paths[:4], None)]
    together = LLM(folder, enable_lora=True, max_num_batched_tokens=512, **options)
    assert together.engine.core.config.enable_lora
    in_company = logprobs(together, pairs)
    alone = LLM(folder, enable_lora=True, max_num_batched_tokens=7, max_num_seqs=1, **options)
    assert [logprobs(alone, [pair])[0] for pair in pairs] == in_company
    assert len({str(tokens) for tokens, _ in in_company}) > len(prompts[:3]), "adapters change answers"


def test_the_plan_equals_the_ops_and_a_server_without_adapters_has_no_part_of_them(case: Case) -> None:
    folder, paths, prompts, _ = case
    plain = LLM(folder, dtype="bfloat16")
    assert plain.engine.part(Adapters) is None
    assert not hasattr(plain.engine.runner.model, "sites")
    llm = LLM(folder, dtype="bfloat16", enable_lora=True)
    assert llm.engine.runner.loaded.op_by_op is None
    request = LoRARequest("a", str(paths[0]))
    planned = llm.generate(prompts, PARAMS, lora_request=request)
    model = llm.engine.runner.model
    model.plan.run = lambda x, inputs, cache: model._run_layers(x, inputs, cache)  # op by op
    assert [o.outputs[0].token_ids for o in llm.generate(prompts, PARAMS, lora_request=request)] == [
        o.outputs[0].token_ids for o in planned
    ]
    base = [o.outputs[0].token_ids for o in llm.generate(prompts, PARAMS)]
    assert base == [o.outputs[0].token_ids for o in plain.generate(prompts, PARAMS)]


def test_an_adapter_leaves_memory_and_comes_back(case: Case) -> None:
    folder, paths, prompts, answers = case
    llm = LLM(folder, dtype="float32", enable_lora=True, max_loras=2)
    for index in (0, 1, 2, 0, 3, 0):
        output = llm.generate(prompts[0], PARAMS, lora_request=LoRARequest(paths[index].name, str(paths[index])))
        assert list(output[0].outputs[0].token_ids) == answers[0, index]
        assert llm.engine.part(Adapters).num_loaded <= 2
    assert llm.engine.part(Adapters).num_loaded == 2


@pytest.mark.parametrize("name", ["mixtral-window", "qwen3-moe"])
def test_an_adapter_of_experts_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    model = save_model(name, tmp_path / "model")
    tensors = random_adapter(model, seed=1, targets=MIXTURES)
    size = model.config.hidden_size
    expert = "base_model.model.model.layers.0.mlp.experts.0.up_proj"
    tensors |= {f"{expert}.lora_A.weight": torch.ones(4, size), f"{expert}.lora_B.weight": torch.ones(40, 4)}
    path = save_adapter(tmp_path / "adapter", tensors)
    llm = LLM(str(tmp_path / "model"), dtype="float32", enable_lora=True)
    with pytest.raises(InvalidRequestError, match=r"cannot change .*experts.* of this model; .*they can. Merge it"):
        llm.generate([[1, 2, 3]], PARAMS, lora_request=LoRARequest("a", str(path)))
    assert llm.engine.part(Adapters).named == []
