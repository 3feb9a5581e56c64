from types import ModuleType
from typing import Any

import pytest
import torch
import triton.language as tl
from kernel_cases import DEVICE, INTERPRETED

from splitfuse.kernels import reference
from splitfuse.kernels.cuda import argmax

pytestmark = pytest.mark.sampled(12)

MANY = 40 if INTERPRETED else 300  # number of rows; the interpreter takes 11 ms for a row


def random_keys(num_rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator).to(DEVICE)


@pytest.mark.parametrize("shape", [(MANY, 1003), (3, 1), (2, 4096), (4, 9001), (5, 33_000)], ids=str)
def test_samples_what_the_reference_samples(shape: tuple[int, int]) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(DEVICE) * 3
    keys = random_keys(shape[0])
    expected = reference.gumbel_argmax(logits.double(), keys)
    assert argmax.gumbel_argmax(logits, keys).tolist() == expected.tolist()


def test_never_takes_what_is_impossible() -> None:
    logits = torch.full((MANY, 5000), -torch.inf, device=DEVICE)
    logits[:, 4321] = -3.0
    assert argmax.gumbel_argmax(logits, random_keys(MANY)).tolist() == [4321] * MANY


def unscramble(h: int) -> int:
    """Invert MurmurHash3's finaliser."""
    h ^= h >> 16
    h = h * pow(0xC2B2AE35, -1, 2**32) % 2**32
    h ^= (h >> 13) ^ (h >> 26)
    h = h * pow(0x85EBCA6B, -1, 2**32) % 2**32
    return h ^ (h >> 16)


@pytest.mark.parametrize("backend", [argmax, reference], ids=["triton", "reference"])
def test_the_largest_hash_hides_nothing(backend: ModuleType) -> None:
    token = 7
    key = unscramble(2**32 - 1) << 32 | token  # scramble(token ^ low key) is 0, and 0 + high key becomes 2^32 - 1
    keys = torch.tensor([key - 2**64 if key >= 2**63 else key], device=DEVICE)
    logits = torch.full((1, 9), -torch.inf, device=DEVICE)
    logits[0, token] = 0.0
    assert backend.gumbel_argmax(logits, keys).tolist() == [token]


@pytest.mark.skipif(not INTERPRETED, reason="replaces a function of the interpreter")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's of NaN
def test_a_row_that_is_nan_reads_its_own_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU compares by >, so the place of a NaN may be any: of 3 chunks padded to 4 that is the next row's first."""
    largest = tl.max

    def last_of_nan(x: Any, axis: int, return_indices: bool = False) -> Any:
        value, index = largest(x, axis=axis, return_indices=True)
        is_nan = largest((x != x).to(tl.int32), axis=0) > 0
        return value, tl.where(is_nan, x.shape[0] - 1, index)

    monkeypatch.setattr(tl, "max", last_of_nan)
    logits = torch.zeros(2, 9001, device=DEVICE)
    logits[0] = float("nan")
    assert argmax.gumbel_argmax(logits, random_keys(2))[0] == 3 * argmax.BLOCK - 1


def test_rows_may_lie_apart() -> None:
    wide = torch.randn(6, 700, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    logits, keys = wide[:, 100:500], random_keys(6)
    expected = reference.gumbel_argmax(logits.double(), keys)
    assert argmax.gumbel_argmax(logits, keys).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("backend", "num_samples"), [(argmax, MANY + 60), (reference, 4000)], ids=["triton", "reference"]
)
def test_samples_follow_the_distribution(backend: ModuleType, num_samples: int) -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.125, 0.0])
    logits = probabilities.log().expand(num_samples, -1).contiguous().to(DEVICE)
    counts = backend.gumbel_argmax(logits, random_keys(num_samples)).bincount(minlength=5).cpu()
    deviation = (counts - num_samples * probabilities).abs()
    assert (deviation <= 4 * (num_samples * probabilities).sqrt()).all()
    assert counts[4] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 4096), (4, 9001), (0, 50)], ids=str)
def test_max_logits(shape: tuple[int, int], dtype: torch.dtype) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(DEVICE, dtype)
    largest, tokens = argmax.max_logits(logits)
    assert torch.equal(largest, logits.float().amax(dim=1))
    first = (logits == logits.amax(dim=1, keepdim=True)).int().argmax(dim=1)  # bfloat16 has equal logits
    assert torch.equal(tokens, first)


def test_max_logits_of_what_is_not_finite() -> None:
    wide = torch.randn(6, 9500, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    logits = wide[:, 100:9100]
    logits[0, 8999] = logits[1, 5] = logits[1, 7] = torch.nan
    logits[1, 6] = logits[3, 5000] = torch.inf
    logits[2] = -torch.inf
    logits[4, [30, 2000, 6000]] = 99.0  # equal logits, of which the first wins
    largest, tokens = argmax.max_logits(logits)
    assert largest.isnan().tolist() == [True, True, False, False, False, False]
    assert largest[2:5].tolist() == [-torch.inf, torch.inf, 99.0]
    assert tokens[:5].tolist() == [-1, -1, -1, -1, 30]
    assert 0 <= int(tokens[5]) < 9000
