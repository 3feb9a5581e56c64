"""Prompt logprobs: log-probability of each prompt token given the previous ones, in chunks of bounded size."""

from collections.abc import Callable

import torch
from torch import Tensor

from ...core.batch import BatchRow
from ...core.outputs import PromptLogprobs

# Logits held at once: 64 MiB of float32, 110 positions of a vocabulary of 152,000. Smaller chunks would read the head's
# weights too often.
_NUM_LOGITS = 2**24


def prompt_logprobs(
    row: BatchRow, hidden: Tensor, head: Callable[[Tensor], Tensor], *, vocab_size: int
) -> PromptLogprobs | None:
    """Return the logprobs of the tokens at `row.prompt_logprob_positions`; None if they are not finite.

    hidden [number of positions, hidden_size]: states one token before each position; `head` turns states into logits.
    """
    num_top = row.request.params.prompt_logprobs
    assert num_top is not None
    result = PromptLogprobs(num_top)
    positions = row.prompt_logprob_positions
    token_ids = row.request.token_ids[positions.start : positions.stop]
    size = max(1, _NUM_LOGITS // vocab_size)
    for first in range(0, len(token_ids), size):
        chunk = token_ids[first : first + size]
        logprobs = head(hidden[first : first + size]).float().log_softmax(dim=-1)
        own = logprobs.gather(1, torch.tensor(chunk, device=logprobs.device)[:, None])
        if own.isnan().any():  # one logit that is not finite makes its whole row NaN
            return None
        ranks = (logprobs > own).sum(dim=-1) + 1
        top = logprobs.topk(num_top)
        result.add(
            chunk, own[:, 0].tolist(), ranks.tolist(), top.indices.flatten().tolist(), top.values.flatten().tolist()
        )
    return result
