import pytest

from splitfuse.kernels.cuda import attention_decode, attention_prefill, tile_configs
from splitfuse.kernels.cuda.device_info import H100

DECODE, PREFILL = (16, 64, 8, 3), (128, 128, 8, 1)


def test_a_measured_tile_is_taken_where_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ruled = attention_decode.choose_config(4, 64, 2, H100)
    table = {("decode", 90, 128, 2): DECODE, ("prefill", 90, 128, 2): PREFILL}
    monkeypatch.setattr(tile_configs, "MEASURED", table)
    assert attention_decode.choose_config(4, 128, 2, H100) == DECODE
    assert attention_decode.choose_config(71, 128, 2, H100) == (
        128,
        *DECODE[1:],
    )  # BLOCK_M follows from the group, whatever was timed
    assert attention_decode.choose_config(4, 64, 2, H100) == ruled
    assert attention_decode.choose_config(4, 128, 2, H100._replace(capability=100)) != DECODE
    assert attention_prefill.choose_config(10**6, 10**5, 128, 2, H100) == PREFILL
    assert attention_prefill.choose_config(100, 64, 128, 2, H100).BLOCK_M == 64  # too small to fill the GPU with 128
    assert attention_prefill.choose_config(10**6, 10**5, 128, 2, H100, cache_size=1) != PREFILL


@pytest.mark.parametrize(
    ("capability", "architecture"), [(75, 0), (80, 80), (86, 80), (89, 89), (90, 90), (103, 100), (120, 120)]
)
def test_a_card_goes_by_the_latest_that_it_is_not_older_than(
    monkeypatch: pytest.MonkeyPatch, capability: int, architecture: int
) -> None:
    table = {("decode", architecture, 128, 2): (16, architecture, 4, 4) for architecture in tile_configs.ARCHITECTURES}
    monkeypatch.setattr(tile_configs, "MEASURED", table)
    tile = tile_configs.measured("decode", capability, 128, 2)
    assert (tile[1] if tile else 0) == architecture


def test_the_shortest_span_goes_by_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(tile_configs.MIN_TOKENS_PER_SPLIT) == set(tile_configs.ARCHITECTURES)
    monkeypatch.setitem(tile_configs.MIN_TOKENS_PER_SPLIT, 90, 64)
    ampere = H100._replace(capability=86)
    assert [tile_configs.min_tokens_per_split(gpu.capability) for gpu in (H100, ampere)] == [64, 256]
