"""A row's result has the same bits alone and in any batch: one order of sums in every kernel, for any number of rows.

`make builds` runs these tests for lesser processors too.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from patched_library import patched_ops
from quantized_cases import FORMS, Form, random_weight
from torch import Tensor

from splitfuse.kernels import ops
from splitfuse.kernels.cpu import backend as cpu
from splitfuse.kernels.cpu import build

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library")

NUM_ROWS = 256
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 31, 40, 97, 128)
DTYPES = [torch.float32, torch.bfloat16]
LENGTH = 200  # tokens of an attended sequence


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def differing_sizes(op: Callable[[Tensor], Tensor], x: Tensor) -> list[int]:
    """Return the numbers of rows at which a row of op(x) differs from the row in the whole batch."""
    whole = op(x)
    return [size for size in SIZES if not torch.equal(torch.cat([op(part) for part in x.split(size)]), whole)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("input_bits", [16, 8, ops.FAST_INPUTS])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_products_with_quantized_weights(form: str, input_bits: int, dtype: torch.dtype) -> None:
    num_inputs = 768 if FORMS[form].super_group else 640  # many rows unpack 256 or 512 at a time
    packed = cpu.pack_quantized([random_weight(FORMS[form], 70, num_inputs)], dtype=dtype, input_bits=input_bits)
    assert not differing_sizes(lambda x: cpu.linear(x, packed), randn(NUM_ROWS, num_inputs, seed=1, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_inputs", [90, 1100])
@pytest.mark.parametrize("has_offsets", [False, True])
def test_products_with_rows_rounded_whole(has_offsets: bool, num_inputs: int, dtype: torch.dtype) -> None:
    form = Form(8, 0, has_offsets=has_offsets, scale_dtype=torch.float32)
    weight = random_weight(form, 70, num_inputs)._replace(rounds_inputs=True)
    packed, x = cpu.pack_quantized([weight], dtype=dtype), randn(NUM_ROWS, num_inputs, seed=1, dtype=dtype)
    assert not differing_sizes(lambda x: cpu.linear(x, packed), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(70, 256), (33, 672)])
def test_products_with_plain_weights(shape: tuple[int, int], dtype: torch.dtype) -> None:
    packed = cpu.pack_linear(randn(*shape, dtype=dtype), randn(shape[0], seed=1, dtype=dtype))
    assert not differing_sizes(lambda x: cpu.linear(x, packed), randn(NUM_ROWS, shape[1], seed=1, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 90])
def test_norms_and_activations(width: int, dtype: torch.dtype) -> None:
    weight, bias = randn(width, dtype=dtype), randn(width, seed=1, dtype=dtype)
    each: dict[str, Callable[[Tensor], Tensor]] = {
        "rms_norm": lambda x: cpu.rms_norm(x, weight, eps=1e-5),
        "add_rms_norm": lambda x: torch.cat(cpu.add_rms_norm(x, x.flip(1).contiguous(), weight, eps=1e-5), dim=1),
        "layer_norm": lambda x: cpu.layer_norm(x, weight, bias, eps=1e-5),
        "silu_mul": cpu.silu_mul,
        "gelu_tanh_mul": cpu.gelu_tanh_mul,
        "gelu": lambda x: cpu.activation(x, "gelu"),
        "gelu_tanh": lambda x: cpu.activation(x, "gelu_tanh"),
        "softcap": lambda x: cpu.softcap(x, 30.0),
        "log_softmax": lambda x: x.float().log_softmax(dim=-1),
    }
    x = randn(NUM_ROWS, width, seed=2, dtype=dtype)
    assert {name: found for name, op in each.items() if (found := differing_sizes(op, x))} == {}


class Attended:
    """Sequence in a cache, whose queries are attended in any cut."""

    def __init__(
        self, dtype: torch.dtype, *, group: int, head_dim: int, block_size: int, is_int8: bool, length: int = LENGTH
    ) -> None:
        self.dtype, self.block_size = dtype, block_size
        num_blocks, num_kv_heads = -(-length // block_size), 2
        self.q = randn(length, num_kv_heads * group, head_dim, seed=1, dtype=dtype)
        cache_dtype = torch.int8 if is_int8 else dtype
        shape = (num_blocks + 1, num_kv_heads, block_size, ops.token_width(head_dim, cache_dtype))
        self.cache = ops.CacheView(*(torch.zeros(shape, dtype=cache_dtype) for _ in range(2)))
        table = torch.randperm(num_blocks + 1, generator=torch.Generator().manual_seed(3))[:num_blocks]
        self.table = table.int()[None]
        slots = table[torch.arange(length) // block_size] * block_size + torch.arange(length) % block_size
        k, v = (randn(length, num_kv_heads, head_dim, seed=seed, dtype=dtype) for seed in (4, 5))
        rope = ops.RopeArgs(randn(length, head_dim, seed=6))
        cpu.rope_and_cache(self.q, k, v, torch.arange(length), slots, rope, self.cache)

    def attend(self, cuts: list[int], args: ops.AttentionArgs) -> Tensor:
        """Attend chunks between neighbouring cuts, each in a step of its own."""
        return torch.cat([self._chunk(begin, end, args) for begin, end in pairwise(cuts)])

    def _chunk(self, begin: int, end: int, args: ops.AttentionArgs) -> Tensor:
        ragged = ops.RaggedBatch(
            query_start_loc=torch.tensor([0, end - begin], dtype=torch.int32),
            seq_lens=torch.tensor([end], dtype=torch.int32),
            block_tables=self.table,
            num_decodes=int(end - begin == 1),
            max_query_len=end - begin,
            max_seq_len=end,
        )
        return cpu.paged_attention(self.q[begin:end], self.cache, ragged, args)


@pytest.mark.parametrize(
    ("group", "head_dim", "block_size"),
    [(1, 64, 16), (1, 80, 16), (2, 203, 16), (3, 64, 16), (4, 128, 32), (5, 96, 4), (2, 24, 7), (9, 16, 1)],
)
@pytest.mark.parametrize("is_int8", [False, True], ids=["cache of the model", "cache of int8"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_one_token_of_few_and_of_many(
    group: int, head_dim: int, block_size: int, is_int8: bool, dtype: torch.dtype
) -> None:
    attended = Attended(dtype, group=group, head_dim=head_dim, block_size=block_size, is_int8=is_int8)
    random = Random(group)
    for window, softcap in [(0, 0.0), (37, 0.0), (0, 5.0), (70, 5.0)]:
        sinks = randn(2 * group, seed=7) if softcap == 0.0 and window else None
        args = ops.AttentionArgs(head_dim**-0.5, sliding_window=window, softcap=softcap, sinks=sinks)
        whole = attended.attend([0, LENGTH], args)
        every = list(range(LENGTH + 1))
        for cuts in (every, every[::3] + [LENGTH], sorted({0, LENGTH, *random.sample(every, 12)})):
            different = (attended.attend(cuts, args) != whole).flatten(1).any(1).nonzero().flatten().tolist()
            assert not different, (window, softcap, cuts)


@pytest.mark.parametrize("num_threads", [2, 3, 5, 8])
def test_attention_by_several_threads(num_threads: int) -> None:
    """Their last chunks of work are cut by heads or by tokens."""
    before = torch.get_num_threads()
    for group, dtype in ((3, torch.bfloat16), (1, torch.float32)):
        attended = Attended(dtype, group=group, head_dim=64, block_size=16, is_int8=False)
        args = ops.AttentionArgs(64**-0.5)
        whole = attended.attend([0, LENGTH], args)
        torch.set_num_threads(num_threads)
        try:
            for cuts in ([0, LENGTH], [0, 100, 116, 180, LENGTH]):
                assert torch.equal(attended.attend(cuts, args), whole), (group, cuts)
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize("is_int8", [False, True], ids=["cache of the model", "cache of int8"])
@pytest.mark.parametrize(("group", "head_dim", "dtype"), [(3, 64, torch.bfloat16), (1, 80, torch.float32)])
def test_attention_of_a_head_by_two_threads(group: int, head_dim: int, dtype: torch.dtype, is_int8: bool) -> None:
    """One has the keys and the other one the values, if a long row has fewer KV heads than there are threads."""
    before = torch.get_num_threads()
    attended = Attended(dtype, group=group, head_dim=head_dim, block_size=16, is_int8=is_int8, length=1100)
    cuts = [1091, 1092, 1094, 1097, 1100]  # of one token to three
    for args in (ops.AttentionArgs(0.1), ops.AttentionArgs(0.1, sliding_window=700, softcap=5.0)):
        torch.set_num_threads(1)
        try:
            by_one = attended.attend(cuts, args)
            for num_threads in (4, 7):
                torch.set_num_threads(num_threads)
                assert torch.equal(attended.attend(cuts, args), by_one), num_threads
        finally:
            torch.set_num_threads(before)


def ops_by_tiles(folder: Path, *stems: str) -> Mapping[str, Any]:
    """Compile these sources for processors with tiles, which are emulated. Takes seconds, minutes on a busy machine."""
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("the tiles' code needs avx512_bf16")
    emulation = Path(__file__).parents[2] / "support" / "emulated_tiles.h"
    return patched_ops(
        folder / "emulated", stems, flags=("-D__AMX_BF16__=1", "-D__AMX_INT8__=1", "-include", str(emulation))
    )


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_products_by_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = randn(NUM_ROWS, 672, seed=1, dtype=torch.bfloat16), randn(70, 672, dtype=torch.bfloat16)
    by_vectors = cpu.linear(x, cpu.pack_linear(weight))
    tiles = ops_by_tiles(tmp_path, "linear")
    monkeypatch.setattr(build, "library", lambda: tiles)
    packed = cpu.pack_linear(weight)
    torch.testing.assert_close(cpu.linear(x, packed), by_vectors)
    assert not differing_sizes(lambda x: cpu.linear(x, packed), x)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_products_with_quantized_weights_by_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, tiles = build.library(), ops_by_tiles(tmp_path, "quantized_linear_bfloat16")
    x = randn(NUM_ROWS, 672, seed=1, dtype=torch.bfloat16)
    for form, input_bits in product(sorted(FORMS), [16, 8, ops.FAST_INPUTS]):
        weight = random_weight(FORMS[form], 70, 768 if FORMS[form].super_group else 672)
        rows = torch.nn.functional.pad(x, (0, weight.values.shape[1] - 672))
        outs = []
        for library in (vectors, tiles):
            monkeypatch.setattr(build, "library", lambda library=library: library)
            packed = cpu.pack_quantized([weight], dtype=torch.bfloat16, input_bits=input_bits)
            outs.append(cpu.linear(rows, packed))
        assert not differing_sizes(lambda x: cpu.linear(x, packed), rows), (form, input_bits)  # noqa: B023
        if input_bits == 8:
            assert torch.equal(*outs), form


@pytest.fixture(scope="module")
def attention_by_tiles(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return ops_by_tiles(tmp_path_factory.mktemp("tiles"), "attention_prefill")


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_int8", [False, True], ids=["cache of the model", "cache of int8"])
@pytest.mark.parametrize(("group", "head_dim", "block_size"), [(1, 64, 16), (3, 64, 16), (4, 128, 32), (5, 96, 4)])
def test_attention_by_tiles(
    group: int,
    head_dim: int,
    block_size: int,
    is_int8: bool,
    attention_by_tiles: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attended = Attended(torch.bfloat16, group=group, head_dim=head_dim, block_size=block_size, is_int8=is_int8)
    args = ops.AttentionArgs(head_dim**-0.5, sliding_window=37, softcap=5.0)
    every = list(range(LENGTH + 1))
    by_vectors = attended.attend([0, LENGTH], args)
    monkeypatch.setattr(build, "library", lambda: attention_by_tiles)
    whole = attended.attend([0, LENGTH], args)
    torch.testing.assert_close(whole, by_vectors, atol=0.02, rtol=0.02)
    for cuts in (every, every[::3] + [LENGTH]):
        assert torch.equal(attended.attend(cuts, args), whole)
