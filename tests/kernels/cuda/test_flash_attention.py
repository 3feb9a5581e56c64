"""FlashAttention 3 behind paged_attention: a stand-in for its package computes what it is asked for."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, AttentionCase, assert_near
from torch import Tensor

from splitfuse.kernels import ops, reference
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda.attention import flash_attention

NAME = "flash-attn"
CASES = [
    AttentionCase((9, 40), (5, 0)),
    AttentionCase((1, 1, 9, 40), (0, 33, 5, 0), group=4, head_dim=32, is_cache_joint=True),
    AttentionCase((30, 2), (64, 7), group=7, block_size=32, softcap=5.0),
]
OTHERS = {
    "a sliding window": {"sliding_window": 20},
    "sinks": {"has_sinks": True},
    "keys after the query": {"lookahead": 3},
    "a cache of torch.float8_e4m3fn": {"is_cache_fp8": True},
    "torch.float32": {"dtype": torch.float32},
    "blocks of 64 tokens": {"block_size": 64},
    "heads of 36": {"head_dim": 36},
}


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, **named: Any) -> Tensor:
    """Compute as the package documents it: pages [N, S, Hkv, D], the causal mask aligned to each row's end."""
    starts, lengths, tables = named["cu_seqlens_q"], named["cache_seqlens"], named["page_table"]
    assert named.keys() - {"softcap"} == {
        *("cache_seqlens", "page_table", "cu_seqlens_q", "max_seqlen_q", "softmax_scale", "causal"),
    }
    assert named["causal"]
    for integers in (starts, lengths, tables):
        assert integers.dtype == torch.int32
        assert integers.stride(-1) == 1
    assert q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1
    assert len(starts) == len(lengths) + 1 == len(tables) + 1
    assert (starts[0], starts[-1]) == (0, len(q))
    assert named["max_seqlen_q"] >= int(starts.diff().max())
    cache = ops.CacheView(k_cache.transpose(1, 2).double(), v_cache.transpose(1, 2).double())
    ragged = ops.RaggedBatch(starts, lengths, tables, 0, named["max_seqlen_q"], int(lengths.max()))
    args = ops.AttentionArgs(named["softmax_scale"], softcap=named["softcap"])
    return reference.paged_attention(q.double(), cache, ragged, args).to(q.dtype)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of query tokens that the package has got."""
    found: list[int] = []

    def counted(q: Tensor, *args: Tensor, **named: Any) -> Tensor:
        found.append(len(q))
        return flash_attn_with_kvcache(q, *args, **named)

    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_with_kvcache=counted))
    monkeypatch.setattr(flash_attention, "_attend", None)
    monkeypatch.setattr(flash_attention, "_obstacles", set())
    monkeypatch.setattr(flash_attention, "MIN_SEQ_LEN", 40)
    assert flash_attention.choose(torch.device(DEVICE), NAME) is None
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_prompts_are_the_reference(case: AttentionCase, calls: list[int]) -> None:
    assert_near(cuda.paged_attention(*case.build(), case.args), case.expected(), tolerance=case.tolerance)
    assert calls == [sum(length for length in case.query_lens if length > 1)]


@pytest.mark.parametrize("name", OTHERS)
def test_our_own_kernel_computes_what_the_package_does_not(
    name: str, calls: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    case = replace(CASES[0], **OTHERS[name])
    for _ in range(2):
        assert_near(cuda.paged_attention(*case.build(), case.args), case.expected(), tolerance=5e-3)
    assert calls == []
    assert [name in record.message for record in caplog.records] == [True]


def test_short_rows_and_graphs_keep_our_kernel(calls: list[int]) -> None:
    case = AttentionCase((9, 30), (5, 0))  # 39 tokens at most
    cuda.paged_attention(*case.build(), case.args)
    q, cache, ragged = CASES[0].build()
    cuda.paged_attention(q, cache, ragged._replace(num_decodes=None), case.args)
    assert flash_attention.choose(torch.device(DEVICE), None) is None
    cuda.paged_attention(q, cache, ragged, case.args)
    assert calls == []


def test_what_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    device = torch.device(DEVICE)
    assert "build flash_attn_3" in (flash_attention.choose(device, NAME) or "")
    old = flash_attention.device_info(device)._replace(capability=89)
    monkeypatch.setattr(flash_attention, "device_info", lambda _: old)
    assert "this GPU has 8.9" in (flash_attention.choose(device, NAME) or "")
    assert ops.choose_attention(torch.device("cpu"), NAME) == "flash-attn needs a GPU"
    assert ops.choose_attention(torch.device("cpu"), None) is None
