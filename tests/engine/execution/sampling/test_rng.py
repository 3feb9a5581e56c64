"""Keys of many rows equal the keys of single rows, which are mix(derive_seed(seed, position))."""

from splitfuse.engine.execution.sampling.rng import derive_seed, mix, sample_keys


def test_keys_of_many_rows_are_those_of_each() -> None:
    seeds = [0, 1, -1, -(2**63), 2**63, 2**64 - 1, *range(100, 110)]
    positions = list(range(len(seeds)))
    alone = [int(sample_keys([seed], [position])[0]) for seed, position in zip(seeds, positions, strict=True)]
    assert sample_keys(seeds, positions).tolist() == alone
    expected = [mix(derive_seed(seed, position)) for seed, position in zip(seeds, positions, strict=True)]
    assert [key % 2**64 for key in alone] == expected
    assert len(set(alone)) == len(seeds)
