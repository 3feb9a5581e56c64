"""Caches of several kinds side by side: a view for each layer, and the bytes of a token and of a slot."""

from dataclasses import replace

import pytest
import torch
from real_configs import REAL_CONFIGS

from splitfuse.engine.core.batch import Moves
from splitfuse.engine.execution.models.config import ModelConfig
from splitfuse.engine.execution.models.kv_cache import KVCache, StatePool
from splitfuse.engine.execution.models.layer_states import (
    CompositeState,
    LatentKV,
    LayerState,
    NoState,
    PagedKV,
    RecurrentState,
    SharedKV,
)
from splitfuse.engine.execution.models.memory_plan import kv_bytes_per_token, state_bytes
from splitfuse.engine.execution.models.registry import parse_model_config
from splitfuse.kernels import ops

DELTA = RecurrentState(conv_channels=6, conv_width=4, state_shape=(2, 3, 5), num_gates=4)
KINDS: tuple[LayerState, ...] = (
    PagedKV(2, 8), RecurrentState(10, 3), NoState(), DELTA, CompositeState((PagedKV(1, 4), RecurrentState(10, 3))),
    LatentKV(24, 8), SharedKV(0),
)  # fmt: skip


def config_of(*states: LayerState) -> ModelConfig:
    fields = {"num_hidden_layers": len(states), "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 8}
    plain = parse_model_config(
        {"architectures": ["LlamaForCausalLM"], "vocab_size": 9, "max_position_embeddings": 64, **fields}, generation={}
    )
    return replace(plain, layer_states=states)


def test_each_layer_has_the_view_of_its_kind() -> None:
    pool = StatePool(num_slots=7, dtype=torch.bfloat16, max_drafts=3)
    cache = KVCache(
        config_of(*KINDS), num_blocks=5, block_size=4, dtype=torch.float16, device=torch.device("cpu"), states=pool
    )
    paged, conv, nothing, delta, several, latent, shared = cache.layers
    assert shared is paged
    assert isinstance(paged, ops.CacheView)
    assert isinstance(conv, ops.StateView)
    assert isinstance(delta, ops.StateView)
    assert paged.keys.shape == paged.values.shape == (5, 2, 4, 8)
    assert conv.conv.shape == (7, 2, 10)
    assert conv.state is None
    assert conv.conv.dtype == torch.bfloat16
    assert conv.tail is not None
    assert conv.tail.shape == (7, 3, 10)
    assert nothing is None
    assert delta.state is not None
    assert delta.state.shape == (7, 2, 3, 5)
    assert delta.state.dtype == torch.float32
    assert delta.tail is not None
    assert delta.tail.shape == (7, 3, 10)
    assert isinstance(several, tuple)
    assert [type(view) for view in several] == [ops.CacheView, ops.StateView]
    assert isinstance(latent, ops.CacheView)
    assert latent.keys is latent.values
    assert latent.keys.shape == (5, 1, 4, 32)


def test_bytes_are_those_that_the_cache_allocates() -> None:
    config, dtype = config_of(*KINDS), torch.bfloat16
    pool = StatePool(num_slots=7, dtype=dtype, max_drafts=3)
    cache = KVCache(config, num_blocks=5, block_size=4, dtype=dtype, device=torch.device("cpu"), states=pool)
    allocated = sum(tensor.numel() * tensor.element_size() for tensor in cache.memory())
    planned = 5 * 4 * kv_bytes_per_token(config, dtype) + 7 * state_bytes(config, dtype, max_drafts=3)
    assert allocated == planned


def test_a_model_with_attention_in_all_layers_has_no_states() -> None:
    config = config_of(PagedKV(2, 8), PagedKV(2, 8))
    assert not config.is_recurrent
    assert state_bytes(config, torch.float32, max_drafts=4) == 0
    assert kv_bytes_per_token(config, torch.float32) == 2 * 2 * 2 * 8 * 4
    assert config.with_kv_heads(1).layer_states == (PagedKV(1, 8),) * 2


# Layers, numbers of a token's line, and numbers of its expanded keys and values (DeepSeek-AI 2024, table 1).
PUBLISHED = {
    "deepseek-ai/DeepSeek-V2-Lite-Chat": (27, 512 + 64, 16 * (192 + 128)),
    "deepseek-ai/DeepSeek-R1": (61, 512 + 64, 128 * (192 + 128)),
    "moonshotai/Kimi-K2-Instruct": (61, 512 + 64, 64 * (192 + 128)),
    "zai-org/GLM-4.7-Flash": (47, 512 + 64, 20 * (256 + 256)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_latent_takes_an_eighth_of_keys_and_values_at_most(name: str) -> None:
    layers, line, expanded = PUBLISHED[name]
    config = parse_model_config(REAL_CONFIGS[name], generation={})
    assert kv_bytes_per_token(config, torch.bfloat16) == layers * line * 2
    assert kv_bytes_per_token(config, torch.int8) == layers * (line + 4)
    assert line * 8 <= expanded


# Of 35 layers 12 with a window and 3 without have keys and values of their own, of a head of 256 or 512; in the mixture
# all 30 have: 25 of 8 heads of 256, and 5 of 2 heads of 512.
@pytest.mark.parametrize(
    ("name", "numbers"),
    [("google/gemma-4-E2B-it", 12 * 256 + 3 * 512), ("google/gemma-4-26B-A4B-it", 25 * 8 * 256 + 5 * 2 * 512)],
)
def test_layers_count_with_their_own_width_and_shared_ones_not_at_all(name: str, numbers: int) -> None:
    config = parse_model_config(REAL_CONFIGS[name], generation={})
    assert kv_bytes_per_token(config, torch.bfloat16) == 2 * 2 * numbers
    assert config.with_kv_heads(config.num_kv_heads) == config


def test_swapped_blocks_of_layers_of_several_widths_come_back() -> None:
    config = config_of(PagedKV(2, 8), PagedKV(1, 4), SharedKV(0))
    options = {"block_size": 4, "dtype": torch.float32, "device": torch.device("cpu")}
    cache = KVCache(config, num_blocks=5, num_host_blocks=3, **options)  # type: ignore[arg-type]
    tensors = [tensor for view in cache.layers[:2] if isinstance(view, ops.CacheView) for tensor in view[:2]]
    for tensor in tensors:
        assert isinstance(tensor, torch.Tensor)
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    before = [tensor[[1, 3]].clone() for tensor in tensors]
    cache.copy_blocks(swap_out=[(1, 2), (3, 0)], swap_in=[], copies=[])
    for tensor in tensors:
        tensor.zero_()
    cache.copy_blocks(swap_out=[], swap_in=[(2, 4), (0, 1)], copies=[])
    cache.copy_blocks(swap_out=[], swap_in=[], copies=[(4, 0)])
    for tensor, numbers in zip(tensors, before, strict=True):
        assert torch.equal(tensor[[4, 1]], numbers)
        assert torch.equal(tensor[0], numbers[0])
        assert not tensor[[2, 3]].any()


def test_swapped_states_come_back_with_convolution_and_drafts() -> None:
    pool = StatePool(num_slots=5, dtype=torch.bfloat16, max_drafts=2, num_host=2)
    options = {"block_size": 4, "dtype": torch.float32, "device": torch.device("cpu")}
    states = (PagedKV(2, 8), RecurrentState(10, 3), RecurrentState(6, 4, (2, 3, 4), num_gates=2))
    cache = KVCache(config_of(*states), num_blocks=2, num_host_blocks=1, states=pool, **options)  # type: ignore[arg-type]
    assert len(cache.state_tensors) == 5
    for tensor in cache.state_tensors:
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    before = [tensor[[1, 3]].clone() for tensor in cache.state_tensors]
    none: dict[str, list[tuple[int, int]]] = {"swap_out": [], "swap_in": [], "copies": []}
    cache.copy_blocks(**none, beside=Moves([(1, 1), (3, 0)], [], []))
    for tensor in cache.state_tensors:
        tensor.zero_()
    cache.copy_blocks(**none, beside=Moves([], [(1, 4), (0, 2)], []))
    for tensor, numbers in zip(cache.state_tensors, before, strict=True):
        assert torch.equal(tensor[[4, 2]], numbers)
        assert not tensor[[0, 1, 3]].any()
