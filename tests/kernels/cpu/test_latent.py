"""Native latent attention: the expanded form in float64, and equal bits for any cut and any company."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from latent_cases import DEEPSEEK, GLM, TINY, Sizes, World
from patched_library import patched_ops
from torch import Tensor

from splitfuse.kernels import ops, reference
from splitfuse.kernels.cpu import backend as cpu
from splitfuse.kernels.cpu import build
from splitfuse.kernels.cpu import latent as queries

LENGTHS = [130, 7, 65]
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 5e-2}
needs_library = pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library")


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def run(world: World, cuts: list[list[int]], dtype: torch.dtype, cache: ops.CacheView) -> list[Tensor]:
    """Return the sequences' outputs if every step takes the next chunk of each."""
    key_up, value_up = cpu.pack_heads(world.key_up), cpu.pack_heads(world.value_up)
    outs: list[list[Tensor]] = [[] for _ in cuts]
    done = [0] * len(cuts)
    for number in range(max(map(len, cuts))):
        rows = [(row, done[row], done[row] + cut[number]) for row, cut in enumerate(cuts) if number < len(cut)]
        rows.sort(key=lambda row: row[2] - row[1] != 1)
        q, latent, k, positions, slots, ragged = world.step(rows)
        q = cpu.latent_and_cache(q, latent, k, positions, slots, world.cos_sin, key_up, cache)
        out = cpu.head_linear(cpu.paged_attention(q, cache, ragged, world.args), value_up)
        assert out.dtype == dtype
        for (row, _, end), part in zip(rows, out.split([end - begin for _, begin, end in rows]), strict=True):
            outs[row].append(part)
            done[row] = end
    return [torch.cat(parts) for parts in outs]


@needs_library
@pytest.mark.parametrize("cache_dtype", [None, torch.int8], ids=str)
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize("sizes", [TINY, DEEPSEEK, GLM], ids=["tiny", "DeepSeek", "GLM"])
def test_the_expanded_form_and_equal_bits_for_any_cut(
    sizes: Sizes, dtype: torch.dtype, cache_dtype: torch.dtype | None, num_threads: int
) -> None:
    world = World(sizes, LENGTHS, dtype)
    whole = run(world, [[length] for length in LENGTHS], dtype, world.cache(cache_dtype or dtype))
    tolerance = TOLERANCES[dtype] if cache_dtype is None else 6e-2
    for row, out in enumerate(whole):
        torch.testing.assert_close(out.double(), world.expanded(row), atol=tolerance, rtol=tolerance)
    rng = random.Random(0)
    for longest in (1, 5, 64):
        cuts = []
        for length in LENGTHS:
            cut: list[int] = []
            while sum(cut) < length:
                cut.append(min(length - sum(cut), rng.randint(1, longest)))
            cuts.append(cut)
        for out, expected in zip(run(world, cuts, dtype, world.cache(cache_dtype or dtype)), whole, strict=True):
            assert torch.equal(out, expected), longest


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@needs_library
def test_tiles_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With emulated tiles of AMX: near the expanded form, and equal bits for other cuts."""
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("the tiles' code needs avx512_bf16")
    emulation = Path(__file__).parents[3] / "support" / "emulated_tiles.h"
    stems, flags = ("attention_prefill", "linear"), ("-D__AMX_BF16__=1", "-D__AMX_INT8__=1", "-include", str(emulation))
    tiles = {**(build.library() or {}), **patched_ops(tmp_path, stems, flags=flags)}
    monkeypatch.setattr(build, "library", lambda: tiles)
    sizes = Sizes(5, 64, 40, 32, 36)
    world = World(sizes, LENGTHS, torch.bfloat16)
    whole = run(world, [[length] for length in LENGTHS], torch.bfloat16, world.cache(torch.bfloat16))
    for row, out in enumerate(whole):
        torch.testing.assert_close(out.double(), world.expanded(row), atol=5e-2, rtol=5e-2)
    cuts = [[1] * 7 + [60, 63], [1] * 7, [33, 32]]
    for out, expected in zip(run(world, cuts, torch.bfloat16, world.cache(torch.bfloat16)), whole, strict=True):
        assert torch.equal(out, expected)


@needs_library
def test_tokens_without_a_slot_write_nothing() -> None:
    world = World(TINY, [5], torch.float32)
    cache = world.cache(torch.float32)
    q, latent, k, positions, slots, _ = world.step([(0, 0, 5)])
    slots[1::2] = -1
    cpu.latent_and_cache(q, latent, k, positions, slots, world.cos_sin, cpu.pack_heads(world.key_up), cache)
    written = ~cache.keys.isnan().all(-1).flatten()
    assert written.nonzero().flatten().tolist() == sorted(slots[::2].tolist())


def test_without_the_library_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "library", lambda: None)
    world = World(TINY, LENGTHS, torch.float32)
    packed = queries.pack_heads(world.key_up)
    assert packed is world.key_up
    step, caches = world.step([(0, 0, 130)]), [world.cache(torch.float32) for _ in range(2)]
    got, expected = (
        module.latent_and_cache(*step[:5], world.cos_sin, world.key_up, cache)  # type: ignore[attr-defined]
        for module, cache in zip((cpu, reference), caches, strict=True)
    )
    assert torch.equal(got, expected)
    assert torch.equal(caches[0].keys.nan_to_num(9.0), caches[1].keys.nan_to_num(9.0))
    out = cpu.paged_attention(got, caches[0], step.ragged, world.args)
    wide = reference.head_linear(out.double(), world.value_up.double())
    torch.testing.assert_close(wide, world.expanded(0), atol=1e-5, rtol=1e-5)
