"""Sampled: tokens and logprobs that one step sampled, as tensors on the device or copied to the host."""

from typing import NamedTuple

from torch import Tensor

NOT_FINITE_TOKEN = -1  # ops.max_logits' id for a row that is not finite


class SampledLogprobs(NamedTuple):
    """Logprobs of R rows: of the sampled token and of the K likeliest tokens."""

    own: Tensor  # [R] float32, logprob of the sampled token
    ranks: Tensor  # [R] int64, 1 = the likeliest
    top_ids: Tensor  # [R, K] int64
    top: Tensor  # [R, K] float32


class Sampled(NamedTuple):
    """Sampled tokens of S rows, on the device."""

    token_ids: Tensor  # [S] int64, NOT_FINITE_TOKEN where there is none
    largest: Tensor  # [S] float32, the largest logit after all changes
    logprobs: SampledLogprobs | None = None
    raw: Tensor | None = None  # [R, V] float32, logits of the rows with logprobs, the model's own
