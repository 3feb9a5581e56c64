"""A plan equals running op by op, to the bit, for every model that can be planned, any batch and number of threads."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny_models import CONFIGS, VOCAB_SIZE, save_model
from torch import Tensor

from splitfuse.engine.execution.models.forward_inputs import Inputs
from splitfuse.engine.execution.models.kv_cache import KVCache
from splitfuse.engine.execution.models.layer_states import LatentKV
from splitfuse.engine.execution.models.registry import model_class, read_model_config
from splitfuse.engine.formats.weights import weight_source
from splitfuse.kernels import ops, reference
from splitfuse.kernels.cpu import build

BLOCK_SIZE, NUM_BLOCKS = 4, 200
CPU = torch.device("cpu")
# StableLM's 12B multiplies a head by the head's own weight; Hunyuan normalises heads after their rotation; Llama 4 has
# queries that grow and chunks, but only beyond 8,191 positions.
UNPLANNED = {"stablelm-parallel", "cohere-norms", "apertus", "hunyuan-moe", "hunyuan-dense", "ministral3", "llama4"}
PLANNED = sorted(CONFIGS.keys() - UNPLANNED)


@pytest.fixture(autouse=True)
def library() -> Iterator[None]:
    if build.library() is None:
        pytest.skip("needs a C++ compiler for the native CPU library")
    num_threads = torch.get_num_threads()
    with torch.inference_mode():
        yield
    torch.set_num_threads(num_threads)


class Case(NamedTuple):
    """Model with a cache full of random keys and values."""

    model: Any
    cache: KVCache

    def forward(self, inputs: Inputs) -> Tensor:
        out: Tensor = self.model.forward(inputs, self.cache)
        return out

    def op_by_op(self, inputs: Inputs) -> Tensor:
        out: Tensor = self.model._run_layers(self.model._embed(inputs), inputs, self.cache)
        return out


def load(
    name: str, folder: Path, dtype: torch.dtype, *, cache_dtype: torch.dtype | None = None, **options: int
) -> Case:
    save_model(name, folder)
    config = read_model_config(folder)
    with weight_source(folder, load_format="auto", dtype=dtype, seed=0, device=CPU) as source:
        model = model_class(config.architecture)(config, source, device=CPU, max_model_len=300, dtype=dtype, **options)
    cache = KVCache(config, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=cache_dtype or dtype, device=CPU)
    slots = torch.arange(NUM_BLOCKS * BLOCK_SIZE)
    unrotated = torch.empty(len(slots), 0)
    has_latents = any(isinstance(state, LatentKV) for state in config.layer_states)
    for view in cache.layers:
        assert isinstance(view, ops.CacheView)
        head_dim = view.keys.shape[3] - (4 if view.keys.dtype == torch.int8 else 0)  # a head's scale (int8_cache.py)
        numbers = torch.randn(len(slots), view.keys.shape[1], head_dim, generator=seeded(1))
        if has_latents:
            nothing, no_key = torch.empty(len(slots), 1, 0), torch.empty(1, head_dim, 0)
            reference.latent_and_cache(nothing, numbers[:, 0], nothing[:, 0], slots, slots, unrotated, no_key, view)
        else:
            reference.rope_and_cache(numbers, numbers, numbers, slots, slots, ops.RopeArgs(unrotated), view)
    return Case(model, cache)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs_of(rows: list[tuple[int, int]], seed: int) -> Inputs:
    """Make inputs of rows (query tokens, tokens before them); the last token of every row needs logits."""
    rng = random.Random(seed)
    blocks = iter(rng.sample(range(NUM_BLOCKS), NUM_BLOCKS))
    tables = [[next(blocks) for _ in range(-(-(query + before) // BLOCK_SIZE))] for query, before in rows]
    positions = [[*range(before, before + query)] for query, before in rows]
    slots = [
        [table[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in row]
        for table, row in zip(tables, positions, strict=True)
    ]
    starts = torch.tensor([0, *(query for query, _ in rows)]).cumsum(0)
    widest = max(map(len, tables))
    ragged = ops.RaggedBatch(
        query_start_loc=starts.int(),
        seq_lens=torch.tensor([query + before for query, before in rows], dtype=torch.int32),
        block_tables=torch.tensor([table + [0] * (widest - len(table)) for table in tables], dtype=torch.int32),
        num_decodes=sum(query == 1 for query, _ in rows),
        max_query_len=max(query for query, _ in rows),
        max_seq_len=max(map(sum, rows)),
    )
    return Inputs(
        token_ids=torch.tensor([rng.randrange(VOCAB_SIZE) for row in positions for _ in row]),
        positions=torch.tensor([at for row in positions for at in row]),
        slot_mapping=torch.tensor([slot for row in slots for slot in row]),
        ragged=ragged,
        logits_indices=starts[1:] - 1,
    )


# Decode, prefill, both; few and many tokens in turn, so that buffers grow and are kept.
BATCHES = [
    [(1, 9)], [(1, 0), (1, 37), (1, 120)], [(70, 0)], [(1, 5), (3, 8), (40, 21)], [(1, 9)], [(2, 3)], [(1, 9)] * 20,
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PLANNED)
def test_plan_and_op_by_op(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    case = load(name, tmp_path, dtype)
    assert case.model.plan.refusal(case.cache) is None
    for seed, rows in enumerate(BATCHES):
        torch.set_num_threads(1 + seed % 4)
        inputs = inputs_of(rows, seed)
        assert torch.equal(case.forward(inputs), case.op_by_op(inputs)), rows


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_rows_without_logits_change_no_bit(name: str, tmp_path: Path) -> None:
    case = load(name, tmp_path, torch.bfloat16)
    inputs = inputs_of([(1, 5), (3, 8), (40, 21)], 0)
    every = case.forward(inputs._replace(logits_indices=torch.arange(44)))
    for kept in ([], [43], [0, 3, 43], [3, 0, *range(10, 30)]):
        rows = torch.tensor(kept, dtype=torch.int64)
        assert torch.equal(case.forward(inputs._replace(logits_indices=rows)), every[rows]), kept


def test_the_last_mlp_computes_rows_with_logits_alone(tmp_path: Path) -> None:
    case, seen = load("llama-mha", tmp_path, torch.float32), []
    layers = case.model._layers
    for index, layer in enumerate(layers):
        mlp = lambda x, mlp=layer.mlp: (seen.append(len(x)), mlp(x))[1]  # noqa: E731
        layers[index] = replace(layer, mlp=mlp)
    case.op_by_op(inputs_of([(1, 5), (40, 21)], 0))
    assert seen == [*[41] * (len(layers) - 1), 2]


@pytest.mark.parametrize("name", sorted(UNPLANNED))
def test_what_has_no_plan_says_why_and_runs(name: str, tmp_path: Path) -> None:
    case = load(name, tmp_path, torch.float32)
    assert case.model.plan.refusal(case.cache)
    inputs = inputs_of([(1, 5), (9, 0)], 0)
    assert torch.equal(case.forward(inputs), case.op_by_op(inputs))


@pytest.mark.parametrize(
    "options",
    [
        {"weight_bits": 8},
        {"weight_bits": 4},
        {"weight_bits": 4, "input_bits": (8, 8)},
        {"weight_bits": 4, "input_bits": (16, ops.FAST_INPUTS)},
        {"cache_dtype": torch.int8},
        {"cache_dtype": torch.int8, "dtype": torch.float32},
    ],
)
def test_packed_weights_and_caches(options: dict[str, Any], tmp_path: Path) -> None:
    case = load("llama-gqa-tied", tmp_path, **{"dtype": torch.bfloat16, **options})
    assert case.model.plan.refusal(case.cache) is None
    for seed, rows in enumerate(BATCHES):
        torch.set_num_threads(1 + seed % 4)
        inputs = inputs_of(rows, seed)
        assert torch.equal(case.forward(inputs), case.op_by_op(inputs)), rows


@pytest.mark.parametrize("options", [{}, {"weight_bits": 8}, {"weight_bits": 4}, {"cache_dtype": torch.int8}])
def test_a_row_is_the_same_alone_and_in_company(options: dict[str, Any], tmp_path: Path) -> None:
    case = load("llama-gqa-tied", tmp_path, torch.bfloat16, **options)
    inputs = inputs_of([(1, 5 + row) for row in range(20)], 0)
    together = case.forward(inputs)
    for row in (0, 7, 19):
        one = slice(row, row + 1)
        ragged = inputs.ragged._replace(
            query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
            seq_lens=inputs.ragged.seq_lens[one],
            block_tables=inputs.ragged.block_tables[one],
        )
        alone = Inputs(*(tensor[one] for tensor in inputs[:3]), ragged=ragged, logits_indices=torch.tensor([0]))
        assert torch.equal(case.forward(alone)[0], together[row])


def test_a_plan_goes_with_its_cache(tmp_path: Path) -> None:
    case = load("llama-gqa-tied", tmp_path, torch.float32)
    other = KVCache(case.model.config, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32, device=CPU)
    prefill, decode = inputs_of([(9, 0)], 0), inputs_of([(1, 9)], 0)
    for cache in (case.cache, other):
        case.model.forward(prefill, cache)
    before = case.forward(decode)
    other.memory()[0].fill_(torch.nan)
    assert torch.equal(case.forward(decode), before)
    assert case.model.forward(decode, other).isnan().any()
    del other, cache
    assert len(case.model.plan._plans) == 1
