"""Mixtures of experts: names of their weights, layers that have them, and changes that bfloat16 may make."""

import random
from pathlib import Path

import pytest
import torch
from logits import all_logits
from real_configs import REAL_CONFIGS
from tiny_models import VOCAB_SIZE, greedy, make_model, save_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3MoeConfig

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.execution.models.moe import ExpertsConfig
from splitfuse.engine.execution.models.registry import model_class, parse_model_config
from splitfuse.engine.formats.weights import DummySource

SPARSE = ["mixtral-window", "qwen2-moe", "qwen3-moe"]
# The experts, and the parameters that the model cards round to 46.7 and 30.5 billion.
PUBLISHED = {
    "mistralai/Mixtral-8x7B-v0.1": (
        ExpertsConfig(
            num_experts=8, num_experts_per_tok=2, intermediate_size=14336, norm_topk_prob=True,
            layers=frozenset(range(32)),
        ),
        46_702_792_704,
    ),
    "Qwen/Qwen3-30B-A3B": (
        ExpertsConfig(
            num_experts=128, num_experts_per_tok=8, intermediate_size=768, norm_topk_prob=True,
            layers=frozenset(range(48)),
        ),
        30_532_122_624,
    ),
}  # fmt: skip


class CountingSource(DummySource):
    """WeightSource of shapes that counts their elements."""

    def __init__(self) -> None:
        super().__init__(dtype=torch.bfloat16, seed=0)
        self.num_parameters = 0

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self.num_parameters += torch.Size(shape).numel()
        return torch.empty(shape, device="meta")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_mixtures_have_the_experts_and_the_size_they_state(name: str) -> None:
    config = parse_model_config(REAL_CONFIGS[name], generation={})
    source = CountingSource()
    build = model_class(config.architecture)
    build(config, source, device=torch.device("meta"), max_model_len=16, dtype=torch.float32)
    assert (config.hf_config["experts"], source.num_parameters) == PUBLISHED[name]


@pytest.mark.parametrize("name", SPARSE)
def test_experts_in_one_tensor_load_like_experts_one_by_one(name: str, tmp_path: Path) -> None:
    model = save_model(name, tmp_path)
    prompt = list(range(20, 60))
    expected = greedy(model, prompt, 12)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for options in ({}, {"save_original_format": False}, {"max_shard_size": 60_000}):
        for file in tmp_path.glob("*.safetensors*"):
            file.unlink()
        model.save_pretrained(tmp_path, **options)
        llm = LLM(str(tmp_path), dtype="float32")
        assert llm.generate({"prompt_token_ids": prompt}, params)[0].outputs[0].token_ids == expected, options


@pytest.mark.parametrize(("step", "plain"), [(1, None), (1, [0, 3]), (2, []), (3, [2]), (2, [1])])
def test_the_layers_with_experts_are_those_of_transformers(step: int, plain: list[int] | None) -> None:
    theirs = Qwen3MoeConfig(
        architectures=["Qwen3MoeForCausalLM"], num_hidden_layers=6, hidden_size=32, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=64, decoder_sparse_step=step, mlp_only_layers=plain,
    )  # fmt: skip
    with torch.device("meta"):
        layers = AutoModelForCausalLM.from_config(theirs).model.layers
    ours: ExpertsConfig = parse_model_config(theirs.to_dict(), generation={}).hf_config["experts"]
    assert ours.layers == {index for index, layer in enumerate(layers) if hasattr(layer.mlp, "experts")}


def test_a_dummy_mixture_runs_without_weights(tmp_path: Path) -> None:
    save_model("qwen3-moe", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    outputs = LLM(str(tmp_path), load_format="dummy").generate([[20, 21, 22]], params)
    assert len(outputs[0].outputs[0].token_ids) == 5


# Two tokens tie if transformers' logits, in float32 on equal bfloat16 weights, differ by less than this: the standard
# deviation of logits is 1.6, and bfloat16 moves most of them by less than 0.15.
NEAR_TIE = 0.25
# If a router's K-th logit and the next one are closer than this, bfloat16 may send the token to another expert. Logits
# then move by up to 4, in transformers' own bfloat16 as often as in ours.
NEAR_ROUTES = 0.1
MAX_REROUTED = 0.02  # share of the tokens; 1 and 3 of 400 were seen


@pytest.mark.parametrize("name", SPARSE)
def test_bfloat16_differs_from_float32_where_tokens_or_experts_nearly_tie(name: str, tmp_path: Path) -> None:
    """Teacher forcing. Stricter than test_logits.py, whose tolerance allows for the effect of another expert."""
    make_model(name).bfloat16().save_pretrained(tmp_path)
    theirs = make_model(name).bfloat16().float()
    rng = random.Random(5)
    gaps, margins = [], []
    for _ in range(10):
        # Short, because a token that went to another expert moves the tokens that attend to it.
        tokens = [rng.randrange(VOCAB_SIZE) for _ in range(40)]
        truth, margin = _logits_and_routing_margins(theirs, tokens)
        likeliest = all_logits(tmp_path, tokens, dtype="bfloat16", chunks=[18, 1, 1, 20]).argmax(dim=-1, keepdim=True)
        gaps.append(truth.amax(dim=-1) - truth.gather(1, likeliest)[:, 0])
        margins.append(margin)
    gap, margin = torch.cat(gaps), torch.cat(margins)
    assert (gap > 0).any(), "bfloat16 is expected to differ somewhere"
    assert gap[margin >= NEAR_ROUTES].max() < NEAR_TIE
    assert (gap >= NEAR_TIE).sum() <= MAX_REROUTED * len(gap)


@torch.inference_mode()
def _logits_and_routing_margins(model: PreTrainedModel, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Return logits [T, V], and the smallest margin over layers between the last chosen expert and the next, [T]."""
    output = model(torch.tensor([tokens]), output_router_logits=True)
    top_k = model.config.num_experts_per_tok
    ranked = torch.stack(output.router_logits).sort(dim=-1, descending=True).values
    return output.logits[0], (ranked[..., top_k - 1] - ranked[..., top_k]).amin(dim=0)
