"""Exact mode: a token's attention has the same bits in any batch, chunk and kernel."""

from itertools import pairwise
from random import Random

import pytest
import torch
from kernel_cases import DEVICE, INTERPRETED, AttentionCase, assert_near
from ordered_dots import use_ordered_dots
from torch import Tensor

from splitfuse.kernels import ops
from splitfuse.kernels.cuda import attention_decode, attention_prefill, decode_plan, device_info
from splitfuse.kernels.cuda.decode_plan import Spans
from splitfuse.kernels.cuda.device_info import H100

SPANS = Spans(64, 128, 128)
Tiles = tuple[attention_decode.Config, attention_prefill.Config] | None
NUM_TOKENS = 200


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_info.EXACT, "is_on", True)
    monkeypatch.setattr(decode_plan, "SPANS", SPANS)
    use_ordered_dots(monkeypatch)


def attention_of(
    case: AttentionCase, rows: list[tuple[int, int]], *, num_programs: int = 7, tiles: Tiles = None
) -> Tensor:
    """Return the attention of tokens [begin, end) of the case's one row, each pair a row of one batch."""
    q, cache, ragged = case.build()
    rows = sorted(rows, key=lambda row: row[1] - row[0] > 1)
    lengths = [end - begin for begin, end in rows]
    tokens = torch.cat([torch.arange(*row) for row in rows])
    batch = ops.RaggedBatch(
        query_start_loc=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(DEVICE),
        seq_lens=torch.tensor([end for _, end in rows], dtype=torch.int32, device=DEVICE),
        block_tables=ragged.block_tables.repeat(len(rows), 1),
        num_decodes=lengths.count(1),
        max_query_len=max(lengths),
        max_seq_len=max(end for _, end in rows),
    )
    own, out = q[tokens], torch.full((len(tokens), *q.shape[1:]), float("nan"), dtype=q.dtype, device=DEVICE)
    decode_tile, prompt_tile = tiles or (None, None)
    if batch.num_decodes:
        attention_decode.decode_attention(
            own, cache, batch, case.args, out, num_programs=num_programs, config=decode_tile
        )
    if max(lengths) > 1:
        attention_prefill.prefill_attention(own, cache, batch, case.args, out, config=prompt_tile)
    return out


CASES = [
    AttentionCase((NUM_TOKENS,), (0,), group=1, num_kv_heads=1, dtype=torch.float32),
    AttentionCase((NUM_TOKENS,), (0,), group=4, num_kv_heads=1),
    AttentionCase((NUM_TOKENS,), (0,), group=3, num_kv_heads=1, sliding_window=100, has_sinks=True),
    AttentionCase((NUM_TOKENS,), (0,), group=2, num_kv_heads=1, head_dim=80, softcap=20.0, is_cache_fp8=True),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.dtype} group {case.group} window {case.sliding_window}"
)
def test_bits_depend_on_no_schedule(case: AttentionCase, seed: int) -> None:
    whole = attention_of(case, [(0, NUM_TOKENS)])
    assert_near(whole, case.expected(), tolerance=5e-3 if case.is_cache_fp8 else 0.0)
    random = Random(seed)
    cuts = sorted({0, NUM_TOKENS, *random.sample(range(1, NUM_TOKENS), 3)})
    chunks = list(pairwise(cuts))
    singles = [(at, at + 1) for at in random.sample([0, 63, 64, 65, 127, 128, 129, 191, 192, *range(NUM_TOKENS)], 8)]
    rows = sorted([*chunks, *singles], key=lambda row: row[1] - row[0] > 1)
    found = attention_of(case, rows, num_programs=random.choice([1, 3, 20]))
    expected = torch.cat([whole[begin:end] for begin, end in rows])
    assert torch.equal(found, expected), (found != expected).any(2).any(1).nonzero().flatten().tolist()


@pytest.mark.skipif(not INTERPRETED, reason="these tiles are those of 16 bits")
def test_the_tiles_of_16_bits_keep_every_bit_of_float32() -> None:
    """Rounding to 16 bits would hide differences; the interpreter has room for these tiles in float32."""
    case = AttentionCase((NUM_TOKENS,), (0,), group=4, num_kv_heads=1, dtype=torch.float32, sliding_window=150)
    gpu, width = H100, case.head_dim
    decode_tile = attention_decode.exact_config(width, 2, gpu)
    narrow, wide = (attention_prefill.choose_exact_config(rows, width, 2, gpu) for rows in (64, 10**6))
    assert (decode_tile.BLOCK_M, narrow.BLOCK_M, wide.BLOCK_M) == (64, 64, 128)
    whole = attention_of(case, [(0, NUM_TOKENS)], tiles=(decode_tile, wide))
    rows = [(130, 131), (199, 200), (0, 70), (70, 128)]
    found = attention_of(case, rows, tiles=(decode_tile, narrow))
    assert torch.equal(found, torch.cat([whole[begin:end] for begin, end in rows]))


@pytest.mark.skipif(not INTERPRETED, reason="of the interpreter's dots")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("bug", ["other spans", "other steps of keys", "plain sums"])
def test_a_planted_bug_is_seen(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention_of(CASES[0], [(0, NUM_TOKENS)])
    tile = attention_decode.Config(16, 32 if bug == "other steps of keys" else 16, 4, 1)
    if bug == "other spans":
        monkeypatch.setattr(decode_plan, "SPANS", Spans(32, 64, 64))
    if bug == "plain sums":
        monkeypatch.setattr(device_info.EXACT, "is_on", False)
        monkeypatch.setattr(attention_decode, "_spans", lambda: SPANS)
    found = attention_of(CASES[0], [(150, 151), (199, 200)], tiles=(tile, attention_prefill.Config(16, 16, 4, 1)))
    assert not torch.equal(found, whole[[150, 199]])
