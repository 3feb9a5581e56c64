"""Random adapters of one linear, and rows of some of them, for the tests of `ops.add_adapters`."""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from splitfuse.kernels import adapters, ops
from splitfuse.kernels.arguments import TILE_WIDTH

NUM_PARTS = 7  # in all linears; this one has some


@dataclass
class AdapterCase:
    """Inputs and outputs of a linear, its adapters, and the adapter of each row."""

    x: Tensor
    out: Tensor
    place: ops.AdapterPlace
    parts: list[dict[int, ops.AdapterPart]]
    tables: list[adapters.AdapterTable]
    owners: list[int | None]

    def tiles(self, rows: Collection[int] | None = None, tables: list[adapters.AdapterTable] | None = None) -> Tensor:
        """Return the tiles of these rows, or of all."""
        found: dict[int, list[int]] = {}
        for row, owner in enumerate(self.owners):
            if owner is not None and (rows is None or row in rows):
                found.setdefault((tables or self.tables)[owner].address, []).append(row)
        tiles = torch.tensor(adapters.AdapterTable.tiles(found), dtype=torch.int64)
        return tiles.view(-1, TILE_WIDTH).to(self.x.device)


def random_case(rng: Random, dtype: torch.dtype, *, device: str, packs: bool) -> AdapterCase:
    """Draw a case. Rows, ranks and numbers of inputs and outputs are no multiples of anything."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    num_rows, num_inputs = rng.randint(1, 40), rng.choice([64, 75, 130])
    sizes = [rng.randint(1, 70) for _ in range(rng.randint(1, 3))]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    place = ops.AdapterPlace(2, torch.tensor(list(zip(starts, sizes, strict=True)), device=device))
    parts, tables = [], []
    for _ in range(4):
        ranks = [rng.choice([0, 1, 3, 16, 37]) for _ in sizes]
        own = {
            2 + index: ops.AdapterPart(
                (normal(rank, num_inputs).float() * num_inputs**-0.5).to(dtype),
                (normal(size, rank).float() * rank**-0.5).to(dtype),
                rng.choice([0.5, 1.7]),
            )
            for index, (rank, size) in enumerate(zip(ranks, sizes, strict=True))
            if rank
        }
        parts.append(own)
        tables.append(adapters.AdapterTable(own, num_parts=NUM_PARTS, device=torch.device(device), packs=packs))
    return AdapterCase(
        x=normal(num_rows, num_inputs).to(device),
        out=normal(num_rows, sum(sizes)).to(device),
        place=place,
        parts=parts,
        tables=tables,
        owners=[rng.choice([None, 0, 1, 2, 3]) for _ in range(num_rows)],
    )


def expected_sums(case: AdapterCase) -> Tensor:
    """Return the outputs in float64."""
    device = case.x.device
    wide = [
        {number: part._replace(a=part.a.double(), b=part.b.double()) for number, part in own.items()}
        for own in case.parts
    ]
    tables = [adapters.AdapterTable(own, num_parts=NUM_PARTS, device=device, packs=False) for own in wide]
    out = case.out.double()
    adapters.add_in_torch(out, case.x.double(), case.tiles(tables=tables), case.place)
    return out
