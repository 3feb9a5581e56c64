"""Scores of a prompt: the log-probability of each of its tokens given those before it, a bounded piece at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..batch import BatchRow
from ..outputs import PromptLogprobs

# Logits held at once: 64 MiB of float32, 110 positions of a vocabulary of 152,000. A smaller piece reads the head's
# weights more often than it is worth.
_NUM_LOGITS = 2**24


def score(row: BatchRow, hidden: Tensor, head: Callable[[Tensor], Tensor], *, vocab_size: int) -> PromptLogprobs | None:
    """Logprobs of the tokens at `row.scored`; None if they are not finite.

    hidden [len(row.scored), hidden_size] are the states of the tokens before them; `head` makes logits of them.
    """
    num_top = row.request.params.prompt_logprobs
    assert num_top is not None
    scores = PromptLogprobs(num_top)
    token_ids = row.request.token_ids[row.scored.start : row.scored.stop]
    size = max(1, _NUM_LOGITS // vocab_size)
    for first in range(0, len(token_ids), size):
        piece = token_ids[first : first + size]
        logprobs = head(hidden[first : first + size]).log_softmax(dim=-1)
        own = logprobs.gather(1, torch.tensor(piece, device=logprobs.device)[:, None])
        if own.isnan().any():  # one logit that is not finite leaves no number in its row
            return None
        ranks = (logprobs > own).sum(dim=-1) + 1
        top = logprobs.topk(num_top)
        scores.add(
            piece, own[:, 0].tolist(), ranks.tolist(), top.indices.flatten().tolist(), top.values.flatten().tolist()
        )
    return scores
