"""Top-k, top-p and min-p on the CPU: partial sorts of all rows at once.

A row's result must not depend on the others, and the order of a sum over several rows may vary. So sums that decide are
cumulative (cumsum) or over one row.
"""

import torch
from torch import Tensor

# Number of candidates before a full sort: at 32,000 entries topk(1024) takes a third of a sort's time.
_NUM_TOP_P_CANDIDATES = 1024


def filter_logits(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Implement `ops.filter_logits`."""
    size = logits.shape[1]
    best = logits.amax(dim=1)
    # Without min_p (0) the log is -inf, which filters nothing.
    thresholds = best + min_p.log()
    has_top_k = (top_k > 0) & (top_k < size)
    only_top_p = ~has_top_k & (top_p < 1.0)
    for chosen, find in ((has_top_k, _top_k_thresholds), (only_top_p, _top_p_thresholds)):
        rows = chosen.nonzero().flatten()
        if len(rows):
            found = find(logits.index_select(0, rows), best[rows, None], top_k[rows], top_p[rows, None])
            thresholds[rows] = torch.maximum(thresholds[rows], found)
    return logits.masked_fill_(logits < thresholds[:, None], -torch.inf)


def _top_k_thresholds(logits: Tensor, best: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return each row's k-th largest logit, or the smallest of these k that top-p keeps: [n]."""
    values = logits.topk(int(top_k.max()), dim=1).values
    weights = (values - best).exp().masked_fill_(torch.arange(values.shape[1]) >= top_k[:, None], 0.0)
    kept = _num_kept(weights, top_p * weights.cumsum(dim=1)[:, -1:])
    kept = torch.where(top_p[:, 0] < 1.0, torch.minimum(kept, top_k), top_k)
    return values.gather(1, kept[:, None].long() - 1)[:, 0]


def _top_p_thresholds(logits: Tensor, best: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return each row's smallest logit that top-p keeps: [n]."""
    values = logits.topk(min(_NUM_TOP_P_CANDIDATES, logits.shape[1]), dim=1).values
    weights = (values - best).exp()
    totals = [row.sum() for row in (logits - best).exp()]
    targets = top_p * torch.stack(totals)[:, None]
    if bool((weights.sum(dim=1, keepdim=True) < targets).any()):
        values = logits.sort(dim=1, descending=True).values
        weights = (values - best).exp()
    return values.gather(1, _num_kept(weights, targets)[:, None] - 1)[:, 0]


def _num_kept(weights: Tensor, targets: Tensor) -> Tensor:
    """Count each row's descending weights [n, m] whose preceding sum is below the target [n, 1], at least 1: [n]."""
    before = weights.cumsum(dim=1) - weights
    return (before < targets).sum(dim=1).clamp_min_(1)
