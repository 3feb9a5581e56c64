"""Models with latent attention: equal bits for any cut, the cache's bytes, and what they refuse."""

import asyncio
import json
import random
from pathlib import Path

import pytest
import torch
from logits import all_logits
from real_configs import REAL_CONFIGS
from tiny_models import CONFIGS, VOCAB_SIZE, save_model

from splitfuse.engine import LLM, AsyncEngine, EngineConfig, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.registry import parse_model_config
from splitfuse.engine.serving.memory_plan import plan_memory
from splitfuse.kernels.cpu import build

MODELS = ("deepseek-v2", "deepseek-v3", "glm4-moe-lite")
LENGTH = 300
needs_library = pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library")


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param)
    save_model(request.param, folder)
    return folder


@needs_library
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_cut_of_a_prompt_gives_equal_logits(folder: Path, dtype: str) -> None:
    rng = random.Random(5)
    prompt = [rng.randrange(VOCAB_SIZE) for _ in range(LENGTH)]
    whole = all_logits(folder, prompt, dtype=dtype, chunks=[LENGTH])
    for longest in (1, 3, 17, 64, 200):
        chunks: list[int] = []
        while (left := LENGTH - sum(chunks)) > 0:
            chunks.append(min(left, rng.randint(1, longest)))
        assert torch.equal(all_logits(folder, prompt, dtype=dtype, chunks=chunks), whole), longest


@needs_library
@pytest.mark.parametrize(
    "settings", [{"kv_cache_dtype": "int8"}, {"quantization": "int4"}, {"dtype": "bfloat16"}], ids=str
)
def test_neighbours_and_budgets_change_no_token(folder: Path, settings: dict[str, str]) -> None:
    rng = random.Random(6)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 15, 90, 200)]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
    settings = {"dtype": "float32", "device": "cpu", **settings}
    alone_llm = LLM(str(folder), enable_prefix_caching=False, **settings)
    alone = [alone_llm.generate(prompt, params)[0].outputs[0].token_ids for prompt in prompts]
    for budget in (7, 64):
        llm = LLM(str(folder), max_num_batched_tokens=budget, **settings)
        for _ in range(2):  # the second time from the prefix cache
            assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == alone


def test_stats_and_plan_show_the_bytes_of_latents(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    expected = 2 * config["num_hidden_layers"] * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    settings = EngineConfig(model=str(folder), dtype="bfloat16", device="cpu", num_kv_blocks=8)

    async def shown() -> int:
        engine = AsyncEngine(settings)
        await engine.start()
        try:
            return int(engine.stats()["kv_bytes_per_token"])
        finally:
            await engine.stop()

    assert asyncio.run(shown()) == plan_memory(settings, folder).token_bytes == expected


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa"])
def test_indexers_are_refused_by_name(name: str) -> None:
    architecture = {"deepseek_v32": "DeepseekV32ForCausalLM", "glm_moe_dsa": "GlmMoeDsaForCausalLM"}[name]
    raw = {**REAL_CONFIGS["deepseek-ai/DeepSeek-R1"], "model_type": name, "architectures": [architecture]}
    raw |= {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
    with pytest.raises(ConfigError, match=architecture):
        parse_model_config(raw, generation={}, impl="auto")
    with pytest.raises(ConfigError, match="an indexer chooses is not built"):
        parse_model_config({**raw, "architectures": ["DeepseekV3ForCausalLM"]}, generation={}, impl="auto")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_lora_rank": None}, "kv_lora_rank must be a positive integer"),
        ({"kv_lora_rank": 2048}, "kv_lora_rank 2048 is not built"),
        ({"norm_topk_prob": True}, "norm_topk_prob True is not built"),
        ({"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not built"),
    ],
)
def test_other_shapes_are_refused_in_one_line(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_model_config({**REAL_CONFIGS["deepseek-ai/DeepSeek-V2-Lite-Chat"], **change}, generation={})


def test_auto_is_native() -> None:
    for name in MODELS:
        raw = {**CONFIGS[name].to_dict(), "architectures": [CONFIGS[name].model_type]}
        raw["architectures"] = {"deepseek_v2": ["DeepseekV2ForCausalLM"], "deepseek_v3": ["DeepseekV3ForCausalLM"]}.get(
            CONFIGS[name].model_type, ["Glm4MoeLiteForCausalLM"]
        )
        assert parse_model_config(raw, generation={}, impl="auto").impl == "native"


def test_ranks_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="whose layers keep a latent"):
        LLM(str(folder), tensor_parallel_size=2)
