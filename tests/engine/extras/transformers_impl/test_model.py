"""Models without a class here: tokens through transformers' modules equal transformers', under random schedules."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from random_schedule import Arrival, random_llm, run_schedule
from tiny_models import MAX_LEN, VOCAB_SIZE, byte_tokenizer, greedy
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from splitfuse.engine import SamplingParams
from splitfuse.engine.execution.models.registry import MODELS
from splitfuse.engine.extras.transformers_impl import TESTED

_NUM_NEW = 8
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": MAX_LEN, "initializer_range": 0.2,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
_MHA = {**_SHAPE, "num_key_value_heads": 4}
_HEADS = {**_SHAPE, "head_dim": 16}
_WINDOW = {**_HEADS, "sliding_window": 37}
_EXPERTS = {
    "moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_routed_experts": 4, "num_experts": 4,
    "num_local_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
    "head_dim": 8,
}  # fmt: skip
_MIXTURE = {**_SHAPE, **_EXPERTS}
_MLA = {**_MHA, **_EXPERTS, **_LATENT}

# Keys are values of `model_type` in config.json.
CONFIGS: dict[str, dict[str, Any]] = {
    "afmoe": {**_WINDOW, **_EXPERTS},
    "axk1": _MLA,
    "bitnet": _SHAPE,
    "cohere2_moe": {**_WINDOW, **_EXPERTS},
    "cwm": {**_WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "exaone_moe": {**_WINDOW, **_EXPERTS},
    "flex_olmo": _MIXTURE,
    "glm4_moe_lite": _MLA,
    "gpt_bigcode": _MHA,
    "granitemoeshared": {**_MIXTURE, "shared_intermediate_size": 32},
    "helium": _HEADS,
    "hyperclovax": _SHAPE,
    "hy_v3": {**_HEADS, **_EXPERTS},
    "jais2": _HEADS,
    "laguna": {**_WINDOW, **_EXPERTS},
    "llama": {**_SHAPE, "tie_word_embeddings": True},
    "mellum": _MIXTURE,
    "minicpm3": _MLA,
    "nanochat": _SHAPE,
    "olmo": _SHAPE,
    "opt": {**_MHA, "ffn_dim": 96},
    "persimmon": _MHA,
    "phi": _MHA,
    "phimoe": _MIXTURE,
    "solar_open": {**_HEADS, **_EXPERTS},
    "vaultgemma": _WINDOW,
    "youtu": _MLA,
}


def test_the_list_names_what_is_tested() -> None:
    architectures = {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind] for kind in CONFIGS}
    assert architectures - set(TESTED) <= set(MODELS)
    assert set(TESTED) <= architectures


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", CONFIGS)
def test_greedy_tokens_equal_transformers_under_random_schedules(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**CONFIGS[kind])).eval()
    with torch.no_grad():
        for parameter in (parameter for parameter in model.parameters() if parameter.ndim == 1):
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    rng = random.Random(kind)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 17, 90)]
    prompts.append([*prompts[-1][:60], 5, 6])  # the prefix cache holds its beginning
    llm = random_llm(rng, str(tmp_path), max_tokens_of_one=100, block_sizes=(4, 16), model_impl="transformers")
    params = SamplingParams(temperature=0, max_tokens=_NUM_NEW, ignore_eos=True)
    arrivals = [Arrival(prompt, params, at_step=rng.randint(0, 9)) for prompt in prompts]
    run_schedule(llm, arrivals)
    for prompt, arrival in zip(prompts, arrivals, strict=True):
        assert arrival.output.token_ids == greedy(model, prompt, _NUM_NEW, guess=arrival.output.token_ids)
