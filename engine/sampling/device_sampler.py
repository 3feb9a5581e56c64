"""The sampler's draw without a wait for the device: what it needs of the requests comes with the step's numbers.

It draws what `sampler.sample` draws for rows that read no tokens (`overlap.reads_tokens`).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...kernels import ops
from ..batch import BatchRow
from ..models.forward_inputs import Arrays
from .rng import draw_key

NOT_FINITE_TOKEN = -1


def sampling_arrays(rows: Sequence[BatchRow]) -> Arrays:
    """Of rows that sample: keys, temperatures (0 = greedy) and filters, as far as anybody wants them.

    The token to draw stands at position row.end, which the request itself may not have reached yet.
    """
    params = [row.request.params for row in rows]
    if all(each.is_greedy for each in params):
        return {}
    arrays: Arrays = {
        "keys": np.array([draw_key(row.request.seed, row.end) for row in rows], dtype=np.int64),
        "temperature": np.array([each.temperature for each in params], dtype=np.float32),
    }
    if any(each.top_k or each.top_p < 1.0 or each.min_p > 0.0 for each in params):
        arrays["top_k"] = np.array([each.top_k for each in params], dtype=np.int32)
        arrays["top_p"] = np.array([each.top_p for each in params], dtype=np.float32)
        arrays["min_p"] = np.array([each.min_p for each in params], dtype=np.float32)
    return arrays


def draw(logits: Tensor, fields: dict[str, Tensor]) -> Tensor:
    """Tokens [S] int64 of logits [S, V] float32, which may be overwritten; NOT_FINITE_TOKEN where these are not finite.

    `fields`: what `sampling_arrays` gave, on the device.
    """
    best, tokens = logits.max(dim=-1)  # NaN wins a max, so `best` shows every row that is not finite
    if "keys" in fields:
        temperature = fields["temperature"]
        scaled = (logits - best[:, None]) / temperature[:, None].clamp_min(1e-5)
        if "top_k" in fields:
            scaled = ops.filter_logits(scaled, fields["top_k"], fields["top_p"], fields["min_p"])
        tokens = torch.where(temperature > 0.0, ops.gumbel_argmax(scaled, fields["keys"]), tokens)
    return torch.where(torch.isfinite(best), tokens, NOT_FINITE_TOKEN)
