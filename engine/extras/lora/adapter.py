"""Adapter: matrices in memory that a request's rows add. Whoever runs such a row holds it."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...core.batch import BatchRow
from ...core.sampling_params import SamplingParams
from ...execution.models.forward_inputs import Arrays

if TYPE_CHECKING:
    from ....kernels.ops import AdapterTable


@dataclass(frozen=True, eq=False)
class Adapter:
    """Adapter that is loaded. `digest`: hash of its files; `secret`: of this process, for the prefix cache."""

    name: str
    digest: str
    table: "AdapterTable"
    secret: bytes

    def params(self, params: SamplingParams) -> SamplingParams:
        """Return parameters with this adapter, whose blocks no other adapter and no plain request can find."""
        # Nobody can send this salt, because nobody knows the secret.
        salt = hmac.new(self.secret, f"{self.digest} {params.cache_salt}".encode(), "sha256").hexdigest()
        return replace(params, adapter=self, cache_salt=salt)

    def named(self) -> "Adapter":
        """Return the adapter without its matrices, for what outlives a request: its place in memory is free."""
        return replace(self, table=cast(Any, None))

    def arrays(self, rows: Sequence[BatchRow]) -> Arrays:
        """Return the tiles of a step's rows, grouped by adapter."""
        tokens: dict[int, list[int]] = {}
        start = 0
        for row in rows:
            if (adapter := row.request.params.adapter) is not None:
                tokens.setdefault(adapter.table.address, []).extend(range(start, start + row.num_tokens))
            start += row.num_tokens
        return {"adapter_tiles": np.array(self.table.tiles(tokens), dtype=np.int64)}
